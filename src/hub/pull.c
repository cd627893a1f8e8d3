/* SPDX-License-Identifier: Apache-2.0
 *
 * A model from its name to a path: the note of an earlier call, or the list, the choice, the room on the disk, the files.
 */
#define _GNU_SOURCE
#include "hub/inner.h"

#include "base/file.h"
#include "base/mem.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { MOST_LIST = 32 << 20, MOST_PAGES = 100, MOST_NOTE = 1 << 20, SPARE_BYTES = 64 << 20 };

/* ---- listing ---- */

struct page {
    struct str text;
    char next[2048]; /* the address of the next page, or "" */
};

static size_t on_page(char *bytes, size_t size, size_t n, void *arg)
{
    struct page *p = arg;
    if (p->text.n + size * n > MOST_LIST)
        return 0;
    str_add(&p->text, bytes, size * n);
    return str_ok(&p->text) ? size * n : 0;
}

/* Link: <https://...>; rel="next" */
static size_t on_header(char *bytes, size_t size, size_t n, void *arg)
{
    struct page *p = arg;
    const size_t all = size * n;
    const char *open = memchr(bytes, '<', all), *close = open ? memchr(open, '>', all - (size_t)(open - bytes)) : NULL;
    if (all > 5 && strncasecmp(bytes, "link:", 5) == 0 && close && memmem(close, all - (size_t)(close - bytes), "\"next\"", 6))
        snprintf(p->next, sizeof p->next, "%.*s", (int)(close - open - 1), open + 1);
    return all;
}

static ingle_status get_page(const struct hub_options *o, const char *repository, const char *url, struct page *p, struct err *err)
{
    long status = 0;
    CURL *e = hub_request(o, url);
    p->next[0] = 0;
    str_clear(&p->text);
    if (!e || curl_easy_setopt(e, CURLOPT_WRITEFUNCTION, on_page) != CURLE_OK || curl_easy_setopt(e, CURLOPT_WRITEDATA, p) != CURLE_OK ||
        curl_easy_setopt(e, CURLOPT_HEADERFUNCTION, on_header) != CURLE_OK || curl_easy_setopt(e, CURLOPT_HEADERDATA, p) != CURLE_OK)
    {
        if (e)
            curl_easy_cleanup(e);
        return err_set(err, INGLE_NOMEM, "no memory for a request");
    }
    const CURLcode code = curl_easy_perform(e);
    (void)curl_easy_getinfo(e, CURLINFO_RESPONSE_CODE, &status);
    curl_easy_cleanup(e);
    if (code != CURLE_OK)
        return err_set(err, INGLE_IO, "%s: the hub at %s does not answer: %s", repository, o->address, curl_easy_strerror(code));
    if (status == 401 || status == 403)
        return err_set(err, INGLE_IO, "%s: the hub refuses it (status %ld): there is no such repository, or a token is needed "
                       "(--hub-token-file)", repository, status);
    if (status != 200)
        return err_set(err, INGLE_IO, "%s: the hub answers with status %ld%s", repository, status,
                       status == 404 ? ": there is no such repository or revision" : "");
    return INGLE_OK;
}

ingle_status hub_list(const char *name, const struct hub_options *o, struct hub_list *out, struct err *err)
{
    struct hub_name n;
    struct page p;
    struct str url;
    ingle_status st = hub_name_read(name, &n, err);
    if (st)
        return st;
    str_init(&p.text);
    str_init(&url);
    str_addf(&url, "%s/api/models/%s/tree/", o->address, n.repository);
    hub_escape(&url, o->revision);
    str_adds(&url, "?recursive=true");
    for (int i = 0; !st && url.n; i++) {
        if (i == MOST_PAGES || !str_ok(&url)) {
            st = err_set(err, INGLE_LIMIT, "%s: the list of files has more than %d pages", n.repository, MOST_PAGES);
            break;
        }
        st = get_page(o, n.repository, url.at, &p, err);
        if (!st && (st = hub_list_read(out, p.text.at, p.text.n, err)))
            st = err_prefix(err, "%s", n.repository);
        str_clear(&url);
        /* The token must not go where a list points. */
        if (!st && p.next[0] && strncmp(p.next, o->address, strlen(o->address)) == 0 && p.next[strlen(o->address)] == '/')
            str_adds(&url, p.next);
        else if (!st && p.next[0])
            st = err_set(err, INGLE_FORMAT, "%s: the list goes on at another server", n.repository);
    }
    str_release(&url);
    str_release(&p.text);
    return st;
}

/* ---- notes: what was pulled before ---- */

static char *join(const char *a, const char *b, const char *c)
{
    struct str s;
    str_init(&s);
    str_adds(&s, a);
    str_addf(&s, "/%s", b);
    if (c && *c)
        str_addf(&s, "/%s", c);
    return str_detach(&s);
}

/* The note of a code: a line with what is opened, then "SIZE PATH" a file. */
static char *note_path(const char *folder, const struct hub_name *n, const char *revision)
{
    struct str s;
    str_init(&s);
    str_addf(&s, "%s/.ingle-%s-", folder, n->code[0] ? n->code : "only");
    for (const char *p = revision; *p; p++)
        str_addc(&s, *p == '/' ? '_' : *p);
    return str_detach(&s);
}

static bool is_there(const char *folder, const char *path, uint64_t n_bytes)
{
    struct stat is;
    char *full = join(folder, path, NULL);
    const bool there = full && stat(full, &is) == 0 && S_ISREG(is.st_mode) && (uint64_t)is.st_size == n_bytes;
    mem_free(full);
    return there;
}

/* The path that a note names, if all of its files are there; NULL: they are not. */
static char *read_note(const char *folder, const char *note)
{
    char *text;
    size_t n;
    if (access(note, R_OK) || file_slurp(note, MOST_NOTE, &text, &n, NULL))
        return NULL;
    char *end = strchr(text, '\n'), *result = NULL;
    bool ok = end != NULL;
    if (ok)
        *end++ = 0;
    for (char *line = end; ok && *line;) {
        char *stop = strchr(line, '\n'), *path;
        const uint64_t size = strtoull(line, &path, 10);
        ok = stop && *path == ' ';
        if (!ok)
            break;
        *stop = 0;
        ok = hub_path_is_safe(path + 1) && is_there(folder, path + 1, size);
        line = stop + 1;
    }
    if (ok && (!*text || hub_path_is_safe(text)))
        result = *text ? join(folder, text, NULL) : mem_strdup(folder);
    mem_free(text);
    return result;
}

static ingle_status write_note(const char *note, const struct hub_list *l, const char *first, struct err *err)
{
    struct str s;
    str_init(&s);
    str_addf(&s, "%s\n", first);
    for (size_t i = 0; i < l->n; i++)
        if (l->at[i].wanted)
            str_addf(&s, "%llu %s\n", (unsigned long long)l->at[i].n_bytes, l->at[i].path);
    const ingle_status st = str_ok(&s) ? file_write_atomic(note, s.at, s.n, err) : err_set(err, INGLE_NOMEM, "no memory for a note");
    str_release(&s);
    return st;
}

/* ---- the files ---- */

/* The folders of DIRECTORY/OWNER/NAME/a/b before the last '/'. */
static ingle_status make_folders(const char *path, struct err *err)
{
    char *copy = mem_strdup(path);
    ingle_status st = copy ? INGLE_OK : err_set(err, INGLE_NOMEM, "no memory for '%s'", path);
    for (char *p = copy ? copy + 1 : NULL; p && !st && (p = strchr(p, '/')); p++) {
        *p = 0;
        if (mkdir(copy, 0755) && errno != EEXIST)
            st = err_set(err, INGLE_IO, "the folder '%s' cannot be made: %s", copy, strerror(errno));
        *p = '/';
    }
    mem_free(copy);
    return st;
}

/* What is written already of a file that is not whole. */
static uint64_t written(const char *folder, const struct hub_file *f)
{
    struct stat is;
    struct str s;
    str_init(&s);
    str_addf(&s, "%s/%s.part", folder, f->path);
    const uint64_t n = str_ok(&s) && stat(s.at, &is) == 0 ? (uint64_t)is.st_blocks * 512 : 0;
    str_release(&s);
    return n < f->n_bytes ? n : f->n_bytes;
}

static ingle_status check_room(const char *folder, const struct hub_list *l, struct err *err)
{
    struct statvfs fs;
    uint64_t need = 0;
    for (size_t i = 0; i < l->n; i++)
        if (l->at[i].wanted && !is_there(folder, l->at[i].path, l->at[i].n_bytes))
            need += l->at[i].n_bytes - written(folder, &l->at[i]);
    if (statvfs(folder, &fs))
        return err_set(err, INGLE_IO, "'%s': %s", folder, strerror(errno));
    const uint64_t have = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (need && (need > have || have - need < SPARE_BYTES))
        return err_set(err, INGLE_IO, "'%s' has %.2f GB free and the files need %.2f GB", folder, (double)have / 1e9, (double)need / 1e9);
    return INGLE_OK;
}

static ingle_status fetch_all(const struct hub_options *o, const struct hub_name *n, const char *folder, const struct hub_list *l,
                              struct err *err)
{
    uint64_t all = 0, done = 0;
    ingle_status st = INGLE_OK;
    for (size_t i = 0; i < l->n; i++)
        all += l->at[i].wanted ? l->at[i].n_bytes : 0;
    for (size_t i = 0; i < l->n && !st; i++) {
        const struct hub_file *f = &l->at[i];
        if (!f->wanted)
            continue;
        char *path = join(folder, f->path, NULL);
        st = path ? make_folders(path, err) : err_set(err, INGLE_NOMEM, "no memory for '%s'", f->path);
        mem_free(path);
        if (!st && !is_there(folder, f->path, f->n_bytes))
            st = hub_fetch(o, n->repository, folder, f, done, all, err);
        done += f->n_bytes;
    }
    return st;
}

ingle_status hub_pull(const char *name, const struct hub_options *o, char **path, struct err *err)
{
    struct hub_name n;
    struct hub_list list = {0};
    const char *first = "";
    ingle_status st = hub_name_read(name, &n, err);
    if (st)
        return st;
    char *folder = join(o->directory, n.repository, NULL), *note = folder ? note_path(folder, &n, o->revision) : NULL;
    if (!note)
        st = err_set(err, INGLE_NOMEM, "no memory for '%s'", name);
    char *found = st ? NULL : read_note(folder, note);
    if (!st && !found && o->offline)
        st = err_set(err, INGLE_NOTFOUND, "'%s' was not pulled before, and nothing is fetched (--offline)", name);
    if (!st && !found && curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        st = err_set(err, INGLE_NOMEM, "libcurl cannot be started");
    if (!st && !found)
        st = hub_list(name, o, &list, err);
    if (!st && !found && (st = hub_choose(&list, n.code, &first, err)))
        st = err_prefix(err, "%s", n.repository);
    if (!st && !found)
        st = make_folders(note, err);
    if (!st && !found)
        st = check_room(folder, &list, err);
    if (!st && !found)
        st = fetch_all(o, &n, folder, &list, err);
    if (!st && !found)
        st = write_note(note, &list, first, err);
    if (!st && !found && !(found = *first ? join(folder, first, NULL) : mem_strdup(folder)))
        st = err_set(err, INGLE_NOMEM, "no memory for '%s'", name);
    hub_list_release(&list);
    mem_free(note);
    mem_free(folder);
    if (!st)
        *path = found;
    return st;
}
