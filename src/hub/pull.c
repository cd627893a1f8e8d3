/* SPDX-License-Identifier: Apache-2.0 */
/*
 * pull - a model from its name to a path: what is there, or the list, the choice, the room on the
 * disk, the files.
 */
#define _GNU_SOURCE
#include "hub/inner.h"

#include "base/drafter.h"
#include "base/mem.h"

#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

enum { MOST_LIST = 32 << 20, MOST_PAGES = 100, SPARE_BYTES = 64 << 20 };

/* ---- listing ---- */

ingle_status hub_begin(const char *text, const struct hub_options *o, struct hub_name *name,
                       struct hub_options *own, struct err *err)
{
    const ingle_status st = hub_name_read(text, o->address, name, err);
    *own = *o;
    if (st)
        return st;
    if (!hub_revision_is_safe(o->revision))
        return err_set(err, INGLE_ARG, "'%.200s' is no name of a revision", o->revision);
    if (name->revision[0] && strcmp(o->revision, "main") != 0 &&
        strcmp(o->revision, name->revision) != 0)
        return err_set(err, INGLE_ARG,
                       "the address names the revision '%.100s' and --hub-revision '%.100s'",
                       name->revision, o->revision);
    own->revision = name->revision[0] ? name->revision : o->revision;
    return INGLE_OK;
}

ingle_status hub_list_files(const struct hub_options *o, const char *repository,
                            struct hub_list *out, struct err *err)
{
    char next[HUB_MOST_URL] = "";
    struct str url, text;
    ingle_status st = curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK
                          ? INGLE_OK
                          : err_set(err, INGLE_NOMEM, "libcurl cannot be started");
    str_init(&text);
    str_init(&url);
    str_addf(&url, "%s/api/models/%s/tree/", o->address, repository);
    for (const char *p = o->revision; *p; p++) /* its '/' are no parts of the address */
        if (*p == '/')
            str_adds(&url, "%2F");
        else
            hub_escape(&url, (char[]){*p, 0});
    str_adds(&url, "?recursive=true");
    snprintf(out->repository, sizeof out->repository, "%s", repository);
    if (o->token && o->token_from)
        report(o->sink, INGLE_REPORT_NOTE, "hub", o->address, "is sent the token of %s",
               o->token_from);
    for (int i = 0; !st && url.n; i++) {
        if (i == MOST_PAGES || !str_ok(&url)) {
            st = err_set(err, INGLE_LIMIT, "%s: the list of files has more than %d pages",
                         repository, MOST_PAGES);
            break;
        }
        st = hub_get(o, repository, url.at, NULL, MOST_LIST, &text, next, err);
        if (!st && (st = hub_list_read(out, text.at, text.n, err)))
            st = err_prefix(err, "%s", repository);
        str_clear(&url);
        /* The token must not go where a list points. */
        if (!st && next[0] && strncmp(next, o->address, strlen(o->address)) == 0 &&
            next[strlen(o->address)] == '/')
            str_adds(&url, next);
        else if (!st && next[0])
            st = err_set(err, INGLE_FORMAT, "%s: the list goes on at another server", repository);
    }
    str_release(&url);
    str_release(&text);
    return st;
}

ingle_status hub_list(const char *name, const struct hub_options *o, struct hub_list *out,
                      struct err *err)
{
    struct hub_name n;
    struct hub_options own;
    const ingle_status st = hub_begin(name, o, &n, &own, err);
    return st ? st : hub_list_files(&own, n.repository, out, err);
}

/* ---- folders ---- */

/* Reversible, and without '@' and '/'. */
static void add_word(struct str *s, const char *text)
{
    for (; *text; text++)
        if (*text == '/' || *text == '~')
            str_addf(s, "%%%02X", (unsigned char)*text);
        else
            hub_escape(s, (char[]){*text, 0});
}

static char *folder_of(const struct hub_options *o, const char *repository, bool with_hub)
{
    struct str s;
    str_init(&s);
    str_addf(&s, "%s/%s", o->directory, repository);
    if (with_hub || strcmp(o->revision, "main") != 0) {
        str_addc(&s, '@');
        add_word(&s, o->revision);
    }
    if (with_hub) {
        str_addc(&s, '@');
        add_word(&s, o->address);
    }
    return str_detach(&s);
}

static ingle_status place(const struct hub_options *o, const char *repository, bool with_hub,
                          char **folder, struct hub_note *note, struct err *err)
{
    char *path = folder_of(o, repository, with_hub);
    if (!path)
        return err_set(err, INGLE_NOMEM, "no memory for '%s'", repository);
    ingle_status st = hub_note_read(note, path, err);
    if (!st && note->there &&
        (strcmp(note->hub, o->address) != 0 || strcmp(note->revision, o->revision) != 0)) {
        hub_note_release(note);
        mem_free(path);
        return with_hub
                   ? err_set(err, INGLE_ARG, "the folder of %s belongs to another hub", repository)
                   : place(o, repository, true, folder, note, err);
    }
    if (st)
        mem_free(path);
    else
        *folder = path;
    return st;
}

ingle_status hub_place(const struct hub_options *o, const char *repository, char **folder,
                       struct hub_note *note, struct err *err)
{
    return place(o, repository, false, folder, note, err);
}

ingle_status hub_make_folders(const char *path, struct err *err)
{
    char *copy = mem_strdup(path);
    ingle_status st = copy ? INGLE_OK : err_set(err, INGLE_NOMEM, "no memory for '%s'", path);
    for (char *p = copy ? copy + 1 : NULL; p && !st && (p = strchr(p, '/')); p++) {
        *p = 0;
        if (mkdir(copy, 0755) && errno != EEXIST)
            st =
                err_set(err, INGLE_IO, "the folder '%s' cannot be made: %s", copy, strerror(errno));
        *p = '/';
    }
    mem_free(copy);
    return st;
}

/* ---- what is there ---- */

struct pull {
    const char *text; /* as it was given */
    struct hub_name name;
    struct hub_options o;
    char *folder;         /* of this hub and revision */
    struct hub_note note; /* of it */
    struct hub_list had;  /* the files of what was found, marked */
    char *path;           /* the result */
};

static ingle_status set_path(struct pull *p, const char *folder, const char *first, struct err *err)
{
    p->path = hub_join(folder, first);
    return p->path ? INGLE_OK : err_set(err, INGLE_NOMEM, "no memory for '%s'", p->text);
}

/* Marks in l what the wish was before, or would be among what is there; false: nothing. */
static bool recall(const struct pull *p, const struct hub_note *n, struct hub_list *l,
                   const char **first)
{
    const char *code = strcasecmp(p->name.code, "latest") == 0 ? "" : p->name.code;
    l->mmproj = p->o.drafter ? NULL : p->o.mmproj;
    for (size_t i = 0; i < n->n_wishes; i++)
        if (n->wish[i].drafter == p->o.drafter && strcasecmp(n->wish[i].code, code) == 0) {
            *first = n->wish[i].first;
            return !hub_want(l, *first, NULL);
        }
    const ingle_status st = p->o.drafter ? hub_choose_drafter(l, p->name.code, first, NULL)
                                         : hub_choose(l, p->name.code, first, NULL);
    return !st && (l->sure || p->o.offline);
}

static ingle_status copy_list(struct hub_list *to, const struct hub_list *from, struct err *err)
{
    ingle_status st = INGLE_OK;
    for (size_t i = 0; i < from->n && !st; i++)
        st = hub_list_add(to, &from->at[i], from->at[i].path, err);
    return st;
}

/* New times of known files: without them they are hashed again. */
static void learn(const char *folder, const char *hub, const char *revision,
                  const struct hub_list *files)
{
    struct err err;
    if (hub_note_change(folder, hub, revision, &(struct hub_change){.files = files}, &err))
        return; /* the folder cannot be written */
}

static ingle_status find_noted(struct pull *p, struct err *err)
{
    const char *first;
    bool all = true, any_hashed = false;
    ingle_status st = copy_list(&p->had, &p->note.files, err);
    if (st || !p->note.there || !recall(p, &p->note, &p->had, &first))
        return st;
    for (size_t i = 0; i < p->had.n && all && !st; i++) {
        bool hashed = false;
        if (p->had.at[i].wanted)
            st = hub_is_there(&p->o, p->folder, &p->had.at[i], &all, &hashed, err);
        any_hashed |= hashed && all;
    }
    if (st || !all)
        return st;
    if (any_hashed)
        learn(p->folder, p->o.address, p->o.revision, &p->had);
    return set_path(p, p->folder, first, err);
}

/* In the cache of Hugging Face's tools. */
static ingle_status find_cached(struct pull *p, struct err *err)
{
    const char *first = "";
    char *folder = NULL;
    const struct hub_note none = {0};
    if (!p->o.cache || (!p->o.own_cache && !p->o.offline))
        return INGLE_OK;
    hub_list_release(&p->had);
    ingle_status st = hub_cache_list(&p->o, p->name.repository, &p->had, &folder, err);
    if (!st && folder && recall(p, &none, &p->had, &first)) {
        st = set_path(p, folder, first, err);
        if (!st)
            report(p->o.sink, INGLE_REPORT_NOTE, "hub", p->text,
                   "is read from the cache of Hugging Face's tools: %s", p->path);
    }
    mem_free(folder);
    return st;
}

/* By notes of earlier versions, which have no hashes: where the hub is not contacted. */
static ingle_status find_old(struct pull *p, const char *why, struct err *err)
{
    const char *first;
    char *folder = hub_join(p->o.directory, p->name.repository);
    struct hub_note old = {0}, own = {0};
    ingle_status st = folder ? hub_note_read(&own, folder, err)
                             : err_set(err, INGLE_NOMEM, "no memory for a path");
    if (!st && (!own.there || strcmp(own.hub, p->o.address) == 0))
        st = hub_note_read_old(&old, folder, p->o.revision, err);
    /* With several revisions in one folder nobody knows whose file it is. */
    if (!st && old.there && !old.mixed && recall(p, &old, &old.files, &first)) {
        bool all = true;
        for (size_t i = 0; i < old.files.n && all; i++)
            all = !old.files.at[i].wanted || hub_stamp(folder, &old.files.at[i]);
        st = all ? set_path(p, folder, first, err) : INGLE_OK;
        if (!st && all)
            report(p->o.sink, INGLE_REPORT_WARN, "hub", p->text,
                   "was pulled by an earlier version, which kept no hashes: only sizes were "
                   "compared, %s",
                   why);
    }
    hub_note_release(&old);
    hub_note_release(&own);
    mem_free(folder);
    return st;
}

/* ---- the files ---- */

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

void hub_bytes(char out[32], uint64_t n)
{
    static const char unit[][3] = {"kB", "MB", "GB", "TB", "PB"};
    size_t i = 0;
    double x = (double)n / 1e3;
    while (x >= 999.5 && i + 1 < sizeof unit / sizeof *unit) {
        x /= 1e3;
        i++;
    }
    if (n < 1000)
        snprintf(out, 32, n == 1 ? "%u byte" : "%u bytes", (unsigned)n);
    else
        snprintf(out, 32, x < 10 ? "%.2f %s" : x < 100 ? "%.1f %s" : "%.0f %s", x, unit[i]);
}

static ingle_status check_room(const char *folder, const struct hub_list *l, struct err *err)
{
    struct statvfs fs;
    char has[32], needs[32], spare[32];
    uint64_t need = 0;
    for (size_t i = 0; i < l->n; i++)
        if (l->at[i].wanted && !l->at[i].mtime_ns)
            need += l->at[i].n_bytes - written(folder, &l->at[i]);
    if (statvfs(folder, &fs))
        return err_set(err, INGLE_IO, "'%s': %s", folder, strerror(errno));
    const uint64_t have = (uint64_t)fs.f_bavail * fs.f_frsize;
    hub_bytes(has, have);
    hub_bytes(needs, need);
    hub_bytes(spare, SPARE_BYTES);
    if (need && (need > have || have - need < SPARE_BYTES))
        return err_set(err, INGLE_IO,
                       "'%s' has %s free and the files need %s, beside %s that stay free", folder,
                       has, needs, spare);
    return INGLE_OK;
}

/* A second name for a file, in place of what may be there. */
static bool give_name(const char *from, const char *to, bool may_point)
{
    struct str tmp;
    str_init(&tmp);
    str_addf(&tmp, "%s.link", to);
    bool ok = str_ok(&tmp) && !hub_make_folders(to, NULL);
    if (ok) {
        (void)unlink(tmp.at);
        ok = link(from, tmp.at) == 0 || (may_point && symlink(from, tmp.at) == 0);
    }
    if (ok && rename(tmp.at, to)) {
        (void)unlink(tmp.at);
        ok = false;
    }
    str_release(&tmp);
    return ok;
}

/* The same bytes in a folder of another revision or hub. */
static ingle_status adopt_from(const struct pull *p, const char *folder, struct hub_file *f,
                               struct err *err)
{
    struct hub_note note;
    struct hub_file there = *f;
    bool is = false, hashed;
    ingle_status st = hub_note_read(&note, folder, err);
    if (st)
        return st;
    const struct hub_file *known = hub_list_find(&note.files, f->path);
    there.mtime_ns = there.ctime_ns = 0;
    if (known && strcmp(known->sha256, f->sha256) == 0)
        there.mtime_ns = known->mtime_ns, there.ctime_ns = known->ctime_ns;
    if (!known || there.mtime_ns)
        st = hub_is_there(&p->o, folder, &there, &is, &hashed, err);
    char *from = hub_join(folder, f->path), *to = hub_join(p->folder, f->path);
    if (!st && is && from && to && give_name(from, to, false) && hub_stamp(p->folder, f)) {
        struct hub_list one = {.at = &there, .n = 1};
        there.wanted = true;
        there.path = f->path;
        if (known && hub_stamp(folder, &there)) /* the second name changed its times */
            learn(folder, note.hub, note.revision, &one);
    }
    mem_free(from);
    mem_free(to);
    hub_note_release(&note);
    return st;
}

static ingle_status adopt_blob(const struct pull *p, struct hub_file *f, struct err *err)
{
    char *blob = hub_cache_blob(&p->o, p->name.repository, f), *to = hub_join(p->folder, f->path);
    bool is = false, hashed;
    ingle_status st = INGLE_OK;
    struct hub_file own = *f;
    own.mtime_ns = own.ctime_ns = 0;
    if (blob && to && give_name(blob, to, true))
        st = hub_is_there(&p->o, p->folder, &own, &is, &hashed, err);
    else
        is = true, own.mtime_ns = 0;
    if (!st && !is)
        (void)unlink(to);
    else if (!st && own.mtime_ns) {
        f->mtime_ns = own.mtime_ns, f->ctime_ns = own.ctime_ns;
        report(p->o.sink, INGLE_REPORT_NOTE, "hub", f->path,
               "is taken from the cache of Hugging Face's tools");
    }
    mem_free(blob);
    mem_free(to);
    return st;
}

/* Where the same bytes may be, they need not be fetched. */
static ingle_status adopt(const struct pull *p, struct hub_file *f, struct err *err)
{
    char *owner = mem_strdup(p->folder);
    const char *repository = strchr(p->name.repository, '/') + 1;
    if (!owner)
        return err_set(err, INGLE_NOMEM, "no memory for a path");
    char *slash = strrchr(owner, '/');
    *slash = 0;
    DIR *d = opendir(owner);
    ingle_status st = INGLE_OK;
    for (const struct dirent *e; d && !st && !f->mtime_ns && (e = readdir(d));) {
        const size_t n = strlen(repository);
        if (strncmp(e->d_name, repository, n) != 0 || (e->d_name[n] && e->d_name[n] != '@') ||
            strcmp(e->d_name, slash + 1) == 0)
            continue;
        char *folder = hub_join(owner, e->d_name);
        st = folder ? adopt_from(p, folder, f, err)
                    : err_set(err, INGLE_NOMEM, "no memory for a path");
        mem_free(folder);
    }
    if (d)
        closedir(d);
    mem_free(owner);
    return st || f->mtime_ns ? st : adopt_blob(p, f, err);
}

/* Whether the file of the hub's list is there; its times and its hash are noted then. */
static ingle_status look_for(const struct pull *p, struct hub_file *f, struct err *err)
{
    bool there, hashed;
    const struct hub_file *known = hub_list_find(&p->note.files, f->path);
    const bool same =
        known && known->n_bytes == f->n_bytes &&
        (f->sha256[0] ? strcmp(known->sha256, f->sha256) == 0 : strcmp(known->oid, f->oid) == 0);
    struct hub_file own = *f, old = known ? *known : *f;
    if (known && !same && f->sha256[0] && hub_stamp(p->folder, &old) &&
        old.mtime_ns == known->mtime_ns && old.ctime_ns == known->ctime_ns)
        return adopt(p, f, err); /* it has another hash */
    if (same)
        own.mtime_ns = known->mtime_ns, own.ctime_ns = known->ctime_ns,
        memcpy(own.sha256, known->sha256, sizeof own.sha256);
    if (!own.sha256[0])
        return INGLE_OK; /* small: it is fetched */
    ingle_status st = hub_is_there(&p->o, p->folder, &own, &there, &hashed, err);
    if (!st && there)
        *f = own;
    else if (!st && f->sha256[0])
        st = adopt(p, f, err);
    return st;
}

static ingle_status note_one(const struct pull *p, struct hub_file *f, struct err *err)
{
    const struct hub_list one = {.at = f, .n = 1};
    return hub_note_change(p->folder, p->o.address, p->o.revision,
                           &(struct hub_change){.files = &one}, err);
}

static ingle_status fetch_all(const struct pull *p, struct hub_list *l, struct err *err)
{
    uint64_t all = 0, done = 0;
    ingle_status st = INGLE_OK;
    for (size_t i = 0; i < l->n; i++)
        all += l->at[i].wanted ? l->at[i].n_bytes : 0;
    for (size_t i = 0; i < l->n && !st; i++) {
        struct hub_file *f = &l->at[i];
        char sha256[65];
        if (!f->wanted)
            continue;
        char *path = f->mtime_ns ? NULL : hub_join(p->folder, f->path);
        if (path) {
            st = hub_make_folders(path, err);
            if (!st)
                st = hub_fetch(&p->o, p->name.repository, p->folder, f, done, all, sha256, err);
            if (!st) {
                memcpy(f->sha256, sha256, sizeof sha256);
                st = hub_stamp(p->folder, f) ? note_one(p, f, err)
                                             : err_set(err, INGLE_IO, "'%s' vanished", path);
            }
            mem_free(path);
        } else if (!f->mtime_ns) {
            st = err_set(err, INGLE_NOMEM, "no memory for '%s'", f->path);
        }
        done += f->n_bytes;
    }
    return st;
}

/* A folder of an earlier version may be of any hub: one that is not the usual one has it only if
 * the hub's bytes are there. */
static ingle_status settle(struct pull *p, const struct hub_list *l, struct err *err)
{
    struct hub_note old;
    bool other = false, there, hashed;
    if (p->note.there || strcmp(p->o.address, "https://huggingface.co") == 0)
        return INGLE_OK;
    ingle_status st = hub_note_read_old(&old, p->folder, p->o.revision, err);
    for (size_t i = 0; !st && old.there && i < l->n && !other; i++) {
        struct hub_file f = l->at[i];
        f.mtime_ns = f.ctime_ns = 0;
        if (!f.wanted || !f.sha256[0] || !hub_list_find(&old.files, f.path))
            continue;
        st = hub_is_there(&p->o, p->folder, &f, &there, &hashed, err);
        other = !there;
    }
    hub_note_release(&old);
    if (st || !other)
        return st;
    mem_free(p->folder);
    p->folder = NULL;
    return place(&p->o, p->name.repository, true, &p->folder, &p->note, err);
}

static void offer_drafter(const struct pull *p, const struct hub_list *l, const char *first)
{
    const char *drafter =
        p->o.drafter || drafter_by_name(first) ? NULL : hub_drafter(l, p->name.code);
    if (drafter)
        report(p->o.sink, INGLE_REPORT_NOTE, "hub", p->name.repository,
               "has a drafter for it: --draft hf:%s:%s", p->name.repository, drafter);
}

static ingle_status fetch(struct pull *p, struct err *err)
{
    struct hub_list l = {.mmproj = p->o.mmproj};
    const char *first = "";
    char *note = NULL;
    ingle_status st = hub_list_files(&p->o, p->name.repository, &l, err);
    if (!st && (st = p->o.drafter ? hub_choose_drafter(&l, p->name.code, &first, err)
                                  : hub_choose(&l, p->name.code, &first, err)))
        st = err_prefix(err, "%s", p->name.repository);
    if (!st)
        st = settle(p, &l, err);
    if (!st && !(note = hub_join(p->folder, HUB_NOTE)))
        st = err_set(err, INGLE_NOMEM, "no memory for '%s'", p->text);
    if (!st)
        st = hub_make_folders(note, err);
    for (size_t i = 0; i < l.n && !st; i++)
        if (l.at[i].wanted)
            st = look_for(p, &l.at[i], err);
    if (!st)
        st = check_room(p->folder, &l, err);
    if (!st)
        st = fetch_all(p, &l, err);
    const struct hub_change all = {.files = &l,
                                   .code =
                                       strcasecmp(p->name.code, "latest") == 0 ? "" : p->name.code,
                                   .first = first,
                                   .drafter = p->o.drafter};
    if (!st)
        st = hub_note_change(p->folder, p->o.address, p->o.revision, &all, err);
    if (!st)
        st = set_path(p, p->folder, first, err);
    if (!st)
        offer_drafter(p, &l, first);
    mem_free(note);
    hub_list_release(&l);
    return st;
}

/* ---- what the hub has by now ---- */

static void check(const struct pull *p)
{
    struct hub_options o = p->o;
    struct hub_list l = {0};
    o.hurry = true;
    o.token_from = NULL;
    const char *changed = NULL;
    if (!hub_list_files(&o, p->name.repository, &l, NULL))
        for (size_t i = 0; i < p->had.n && !changed; i++) {
            const struct hub_file *had = &p->had.at[i],
                                  *now = had->wanted ? hub_list_find(&l, had->path) : NULL;
            if (now &&
                (now->n_bytes != had->n_bytes ||
                 (now->sha256[0] && had->sha256[0] && strcmp(now->sha256, had->sha256) != 0) ||
                 (!now->sha256[0] && now->oid[0] && had->oid[0] &&
                  strcmp(now->oid, had->oid) != 0)))
                changed = had->path;
        }
    if (changed)
        report(p->o.sink, INGLE_REPORT_NOTE, "hub", p->text,
               "the hub has a newer '%s': --update fetches it", changed);
    hub_list_release(&l);
}

/* ---- the whole ---- */

static ingle_status begin(struct pull *p, const char *name, const struct hub_options *o,
                          struct err *err)
{
    *p = (struct pull){.text = name};
    const ingle_status st = hub_begin(name, o, &p->name, &p->o, err);
    return st ? st : hub_place(&p->o, p->name.repository, &p->folder, &p->note, err);
}

static void end(struct pull *p)
{
    hub_note_release(&p->note);
    hub_list_release(&p->had);
    mem_free(p->folder);
}

static ingle_status find(struct pull *p, struct err *err)
{
    const ingle_status st = find_noted(p, err);
    return st || p->path ? st : find_cached(p, err);
}

static ingle_status pull(struct pull *p, struct err *err)
{
    char why[200];
    ingle_status st = INGLE_OK;
    if (p->o.update && p->o.offline)
        return err_set(err, INGLE_ARG, "--update asks the hub, and %s fetches nothing",
                       p->o.offline_by ? p->o.offline_by : "--offline");
    if (!p->o.update)
        st = find(p, err);
    if (!st && p->path && p->o.check && !p->o.offline)
        check(p);
    if (st || p->path)
        return st;
    if (p->o.offline) {
        st = find_old(p, "and the hub is not contacted", err);
        return st || p->path
                   ? st
                   : err_set(err, INGLE_NOTFOUND,
                             "'%.250s' was not pulled before, and nothing is fetched (%s)", p->text,
                             p->o.offline_by ? p->o.offline_by : "--offline");
    }
    struct err first = {0};
    st = fetch(p, &first);
    /* what an earlier version pulled is better than nothing */
    if (st == INGLE_IO && !p->o.update) {
        snprintf(why, sizeof why, "because %.180s", first.msg);
        const ingle_status old = find_old(p, why, err);
        if (old || p->path)
            return old;
    }
    if (st && err)
        *err = first;
    return st;
}

ingle_status hub_pull(const char *name, const struct hub_options *o, char **path, struct err *err)
{
    struct pull p;
    ingle_status st = begin(&p, name, o, err);
    if (!st)
        st = pull(&p, err);
    if (!st)
        *path = p.path;
    else
        mem_free(p.path);
    end(&p);
    return st;
}

ingle_status hub_find(const char *name, const struct hub_options *o, char **path, struct err *err)
{
    struct pull p;
    ingle_status st = begin(&p, name, o, err);
    if (!st)
        st = find(&p, err);
    if (!st && !p.path)
        st = err_set(err, INGLE_NOTFOUND, "'%.250s' was not pulled before", name);
    if (!st)
        *path = p.path;
    else
        mem_free(p.path);
    end(&p);
    return st;
}
