/* SPDX-License-Identifier: Apache-2.0 */
/*
 * note - what is known of the files in a folder: .ingle-hub, a line each.
 *
 *     ingle-hub 1
 *     hub ADDRESS
 *     revision NAME
 *     file SIZE SHA256 OID MTIME CTIME PATH        times in ns when the bytes had this hash
 *     wish KIND CODE PATH                          what a code was: KIND m(odel) or d(rafter), CODE
 *     "-": none, PATH ".": the folder
 *
 * Texts are escaped as in addresses.  A file whose times changed is hashed again.  Writers lock the
 * folder.
 */
#define _GNU_SOURCE
#include "hub/inner.h"

#include "base/file.h"
#include "base/mem.h"
#include "base/output.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_NOTE = 16 << 20, MOST_WISHES = 4096, MOST_LEGACY = 64 };

char *hub_join(const char *a, const char *b)
{
    struct str s;
    str_init(&s);
    str_adds(&s, a);
    if (b && *b)
        str_addf(&s, "/%s", b);
    return str_detach(&s);
}

void hub_note_release(struct hub_note *n)
{
    hub_list_release(&n->files);
    for (size_t i = 0; i < n->n_wishes; i++) {
        mem_free(n->wish[i].code);
        mem_free(n->wish[i].first);
    }
    mem_free(n->wish);
    mem_free(n->hub);
    mem_free(n->revision);
    *n = (struct hub_note){0};
}

/* ---- reading ---- */

/* Undoes hub_escape() in place. */
static char *unescaped(char *s)
{
    char *to = s;
    for (const char *p = s; *p; p++)
        if (*p == '%' && str_hex_value(p[1]) >= 0 && str_hex_value(p[2]) >= 0) {
            *to++ = (char)(str_hex_value(p[1]) * 16 + str_hex_value(p[2]));
            p += 2;
        } else {
            *to++ = *p;
        }
    *to = 0;
    return s;
}

/* The next word of a line; NULL: there is none. */
static char *word(char **at)
{
    char *s = *at + strspn(*at, " "), *end = s + strcspn(s, " ");
    if (!*s)
        return NULL;
    *at = *end ? end + 1 : end;
    *end = 0;
    return s;
}

static bool is_hex(const char *s, size_t least, size_t most)
{
    const size_t n = strlen(s);
    return n >= least && n <= most && strspn(s, "0123456789abcdef") == n;
}

/* A line that is not understood is no file. */
static ingle_status read_file(struct hub_note *n, char *line, struct err *err)
{
    struct hub_file f = {0};
    const char *size = word(&line), *sha = word(&line), *oid = word(&line), *mtime = word(&line),
               *ctime = word(&line);
    char *path = word(&line);
    if (!path || !is_hex(sha, 64, 64) || !hub_path_is_safe(unescaped(path)))
        return INGLE_OK;
    f.n_bytes = strtoull(size, NULL, 10);
    memcpy(f.sha256, sha, sizeof f.sha256);
    if (is_hex(oid, 1, sizeof f.oid - 1))
        memcpy(f.oid, oid, strlen(oid) + 1);
    f.mtime_ns = strtoll(mtime, NULL, 10);
    f.ctime_ns = strtoll(ctime, NULL, 10);
    return hub_list_add(&n->files, &f, path, err);
}

static ingle_status add_wish(struct hub_note *n, bool drafter, const char *code, const char *first,
                             struct err *err)
{
    struct hub_wish w = {.drafter = drafter};
    if (n->n_wishes == MOST_WISHES)
        return INGLE_OK;
    w.code = mem_strdup(code);
    w.first = mem_strdup(first);
    if (!w.code || !w.first ||
        !mem_grow(&n->wish, &n->cap_wishes, n->n_wishes + 1, sizeof *n->wish)) {
        mem_free(w.code);
        mem_free(w.first);
        return err_set(err, INGLE_NOMEM, "no memory for a note");
    }
    n->wish[n->n_wishes++] = w;
    return INGLE_OK;
}

static ingle_status read_wish(struct hub_note *n, char *line, struct err *err)
{
    const char *kind = word(&line);
    char *code = word(&line), *first = word(&line);
    if (!first || (strcmp(unescaped(first), ".") != 0 && !hub_path_is_safe(first)))
        return INGLE_OK;
    return add_wish(n, *kind == 'd', strcmp(code, "-") == 0 ? "" : unescaped(code),
                    strcmp(first, ".") == 0 ? "" : first, err);
}

static ingle_status read_line(struct hub_note *n, char *line, struct err *err)
{
    char **to = NULL, *rest = line;
    const char *key = word(&rest);
    if (!key)
        return INGLE_OK;
    if (strcmp(key, "file") == 0)
        return read_file(n, rest, err);
    if (strcmp(key, "wish") == 0)
        return read_wish(n, rest, err);
    to = strcmp(key, "hub") == 0 ? &n->hub : strcmp(key, "revision") == 0 ? &n->revision : NULL;
    if (!to || *to || !*rest)
        return INGLE_OK;
    *to = mem_strdup(unescaped(rest));
    return *to ? INGLE_OK : err_set(err, INGLE_NOMEM, "no memory for a note");
}

ingle_status hub_note_read(struct hub_note *n, const char *folder, struct err *err)
{
    char *path = hub_join(folder, HUB_NOTE), *text = NULL;
    size_t k;
    struct hub_note read = {0};
    *n = read;
    if (!path)
        return err_set(err, INGLE_NOMEM, "no memory for a note");
    const bool there = access(path, R_OK) == 0 && !file_slurp(path, MOST_NOTE, &text, &k, NULL);
    mem_free(path);
    ingle_status st = INGLE_OK;
    for (char *line = text; there && !st && *line;) {
        char *stop = line + strcspn(line, "\n"), *next = *stop ? stop + 1 : stop;
        *stop = 0;
        st = read_line(&read, line, err);
        line = next;
    }
    mem_free(text);
    if (st) {
        hub_note_release(&read);
        return st;
    }
    read.there = there && read.hub && read.revision;
    *n = read;
    return INGLE_OK;
}

/* ---- notes of earlier versions: .ingle-CODE-REVISION, a line with what is opened, then "SIZE
 * PATH" a file ---- */

static ingle_status read_old(struct hub_note *n, char *text, const char *code, struct err *err)
{
    char *end = strchr(text, '\n');
    ingle_status st = INGLE_OK;
    if (!end)
        return INGLE_OK;
    *end++ = 0;
    if (*text && !hub_path_is_safe(text))
        return INGLE_OK;
    for (char *line = end; !st && *line;) {
        char *stop = line + strcspn(line, "\n"), *next = *stop ? stop + 1 : stop, *path;
        struct hub_file f = {0};
        *stop = 0;
        f.n_bytes = strtoull(line, &path, 10);
        bool known = false;
        for (size_t i = 0; *path == ' ' && i < n->files.n; i++)
            known |= strcmp(n->files.at[i].path, path + 1) == 0;
        if (*path == ' ' && !known && hub_path_is_safe(path + 1))
            st = hub_list_add(&n->files, &f, path + 1, err);
        line = next;
    }
    return st ? st : add_wish(n, false, strcmp(code, "only") == 0 ? "" : code, text, err);
}

ingle_status hub_note_read_old(struct hub_note *n, const char *folder, const char *revision,
                               struct err *err)
{
    char tail[220], code[64];
    DIR *d = opendir(folder);
    ingle_status st = INGLE_OK;
    size_t n_read = 0;
    *n = (struct hub_note){0};
    snprintf(tail, sizeof tail, "-%s", revision);
    for (char *p = tail; *p; p++)
        *p = *p == '/' ? '_' : *p;
    for (const struct dirent *e; d && !st && n_read < MOST_LEGACY && (e = readdir(d));) {
        const size_t k = strlen(e->d_name), k_tail = strlen(tail);
        if (strncmp(e->d_name, ".ingle-", 7) != 0 || strcmp(e->d_name, HUB_NOTE) == 0)
            continue;
        n->mixed |= k <= k_tail || strcmp(e->d_name + k - k_tail, tail) != 0;
        if (k <= 7 + k_tail || k - 7 - k_tail >= sizeof code ||
            strcmp(e->d_name + k - k_tail, tail) != 0)
            continue;
        char *path = hub_join(folder, e->d_name), *text;
        size_t k_text;
        snprintf(code, sizeof code, "%.*s", (int)(k - 7 - k_tail), e->d_name + 7);
        if (path && !file_slurp(path, 1 << 20, &text, &k_text, NULL)) {
            st = read_old(n, text, code, err);
            mem_free(text);
            n_read++;
        }
        mem_free(path);
    }
    if (d)
        closedir(d);
    n->there = n->n_wishes > 0;
    return st;
}

/* ---- writing ---- */

static void put(struct str *s, const char *text)
{
    str_addc(s, ' ');
    hub_escape(s, text);
}

static ingle_status write_note(const char *folder, const struct hub_note *n, struct err *err)
{
    struct str s;
    str_init(&s);
    str_adds(&s, "ingle-hub 1\nhub");
    put(&s, n->hub);
    str_adds(&s, "\nrevision");
    put(&s, n->revision);
    str_addc(&s, '\n');
    for (size_t i = 0; i < n->files.n; i++) {
        const struct hub_file *f = &n->files.at[i];
        str_addf(&s, "file %llu %s %s %lld %lld", (unsigned long long)f->n_bytes, f->sha256,
                 f->oid[0] ? f->oid : "-", (long long)f->mtime_ns, (long long)f->ctime_ns);
        put(&s, f->path);
        str_addc(&s, '\n');
    }
    for (size_t i = 0; i < n->n_wishes; i++) {
        str_addf(&s, "wish %c", n->wish[i].drafter ? 'd' : 'm');
        put(&s, n->wish[i].code[0] ? n->wish[i].code : "-");
        put(&s, n->wish[i].first[0] ? n->wish[i].first : ".");
        str_addc(&s, '\n');
    }
    char *path = hub_join(folder, HUB_NOTE);
    ingle_status st =
        str_ok(&s) && path
            ? output_save(&(struct output){.path = path, .kind = OUTPUT_ANY}, s.at, s.n, err)
            : err_set(err, INGLE_NOMEM, "no memory for a note");
    mem_free(path);
    str_release(&s);
    return st;
}

static struct hub_file *file_of(struct hub_list *l, const char *path)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->at[i].path, path) == 0)
            return &l->at[i];
    return NULL;
}

const struct hub_file *hub_list_find(const struct hub_list *l, const char *path)
{
    for (size_t i = 0; i < l->n; i++)
        if (strcmp(l->at[i].path, path) == 0)
            return &l->at[i];
    return NULL;
}

/* What was learnt goes into a note. */
static ingle_status merge(struct hub_note *n, const struct hub_change *c, struct err *err)
{
    ingle_status st = INGLE_OK;
    for (size_t i = 0; c->files && !st && i < c->files->n; i++) {
        const struct hub_file *f = &c->files->at[i];
        struct hub_file *old = file_of(&n->files, f->path);
        char *path = old ? old->path : NULL;
        if (!f->wanted || !f->mtime_ns)
            continue;
        if (old) {
            *old = *f;
            old->path = path;
        } else {
            st = hub_list_add(&n->files, f, f->path, err);
        }
    }
    for (size_t i = 0; c->removed && i < c->removed->n; i++) {
        struct hub_file *old =
            c->removed->at[i].wanted ? file_of(&n->files, c->removed->at[i].path) : NULL;
        if (old) {
            mem_free(old->path);
            *old = n->files.at[--n->files.n];
        }
    }
    for (size_t i = 0; c->code && i < n->n_wishes; i++)
        if (n->wish[i].drafter == c->drafter && strcasecmp(n->wish[i].code, c->code) == 0) {
            mem_free(n->wish[i].code);
            mem_free(n->wish[i].first);
            n->wish[i--] = n->wish[--n->n_wishes];
        }
    return st || !c->code ? st : add_wish(n, c->drafter, c->code, c->first, err);
}

ingle_status hub_note_change(const char *folder, const char *hub, const char *revision,
                             const struct hub_change *c, struct err *err)
{
    struct hub_note n;
    const int lock = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (lock >= 0)
        (void)flock(lock, LOCK_EX);
    ingle_status st = hub_note_read(&n, folder, err);
    if (!st && n.there && (strcmp(n.hub, hub) != 0 || strcmp(n.revision, revision) != 0))
        st = err_set(err, INGLE_ARG, "'%s' has files of revision '%.60s' of %.100s", folder,
                     n.revision, n.hub);
    if (!st && !n.there) {
        hub_note_release(&n);
        n = (struct hub_note){.hub = mem_strdup(hub), .revision = mem_strdup(revision)};
        st = n.hub && n.revision ? INGLE_OK : err_set(err, INGLE_NOMEM, "no memory for a note");
    }
    if (!st)
        st = merge(&n, c, err);
    if (!st)
        st = write_note(folder, &n, err);
    hub_note_release(&n);
    if (lock >= 0)
        close(lock);
    return st;
}

/* ---- whether a file is what a note says ---- */

static int64_t ns_of(struct timespec t) { return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec; }

bool hub_stamp(const char *folder, struct hub_file *f)
{
    struct stat is;
    char *path = hub_join(folder, f->path);
    const bool there =
        path && stat(path, &is) == 0 && S_ISREG(is.st_mode) && (uint64_t)is.st_size == f->n_bytes;
    mem_free(path);
    if (there) {
        f->mtime_ns = ns_of(is.st_mtim);
        f->ctime_ns = ns_of(is.st_ctim);
    }
    return there;
}

ingle_status hub_is_there(const struct hub_options *o, const char *folder, struct hub_file *f,
                          bool *there, bool *hashed, struct err *err)
{
    struct hub_file now = *f;
    char hex[65];
    int fd;
    uint64_t n;
    *there = *hashed = false;
    if (!hub_stamp(folder, &now) || !f->sha256[0])
        return INGLE_OK;
    if (f->mtime_ns && now.mtime_ns == f->mtime_ns && now.ctime_ns == f->ctime_ns) {
        *there = true;
        return INGLE_OK;
    }
    char *path = hub_join(folder, f->path);
    ingle_status st =
        path ? file_open(path, &fd, &n, err) : err_set(err, INGLE_NOMEM, "no memory for a path");
    if (st) {
        mem_free(path);
        return st == INGLE_NOMEM ? st : INGLE_OK; /* what cannot be read is not there */
    }
    st = hub_hash(o, fd, path, n, hex, err);
    file_close(fd);
    mem_free(path);
    if (st)
        return st == INGLE_IO ? INGLE_OK : st;
    *hashed = true;
    *there = strcmp(hex, f->sha256) == 0;
    if (*there)
        f->mtime_ns = now.mtime_ns, f->ctime_ns = now.ctime_ns;
    return INGLE_OK;
}
