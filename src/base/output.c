/* SPDX-License-Identifier: Apache-2.0 */
#define _POSIX_C_SOURCE 200809L
#include "base/output.h"

#include "base/json.h"
#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { HEAD = 1 << 14, MOST_FILES = 1 << 20, MOST_CHAT = 1 << 28, MOST_PARTS = 1024 };

/* ---- what a file is ---- */

const char *output_kind_name(enum output_kind kind)
{
    static const char *const name[] = {[OUTPUT_MODEL] = "a GGUF model",
                                       [OUTPUT_IMPORTANCE] = "a file of importance",
                                       [OUTPUT_WEIGHTS] = "a safetensors file of weights",
                                       [OUTPUT_MATRICES] = "a safetensors file of ingle eval",
                                       [OUTPUT_SIDE] = "a file of a checkpoint",
                                       [OUTPUT_HTML] = "a report of ingle eval",
                                       [OUTPUT_PROFILE] = "a profile of experts",
                                       [OUTPUT_TRACE] = "a trace of experts",
                                       [OUTPUT_COUNTS] = "counts of experts",
                                       [OUTPUT_CHAT] = "a conversation",
                                       [OUTPUT_SESSION] = "a saved session",
                                       [OUTPUT_REQUESTS] = "a server's list of requests",
                                       [OUTPUT_ANY] = "a file",
                                       [OUTPUT_EMPTY] = "empty",
                                       [OUTPUT_GGUF] = "a GGUF file that is no model",
                                       [OUTPUT_PAGE] = "an HTML page",
                                       [OUTPUT_JSON] = "a JSON file",
                                       [OUTPUT_TEXT] = "a text",
                                       [OUTPUT_UNKNOWN] = "a file of another kind"};
    return name[kind];
}

static const char *find_bytes(const char *in, size_t n, const char *what)
{
    const size_t k = strlen(what);
    for (size_t i = 0; i + k <= n; i++)
        if (in[i] == what[0] && memcmp(in + i, what, k) == 0)
            return in + i;
    return NULL;
}

static bool begins(const char *at, size_t n, const char *with)
{
    const size_t k = strlen(with);
    return n >= k && memcmp(at, with, k) == 0;
}

/* By general.type, which stands before the vocabulary; a file without it is a model. */
static enum output_kind gguf_kind(const char *at, size_t n)
{
    static const char key[] = "general.type\x08\0\0\0"; /* and the type of a string */
    enum { KEY = sizeof key - 1 };
    uint64_t len;
    for (size_t i = 0; i + KEY + sizeof len <= n; i++) {
        if (at[i] != 'g' || memcmp(at + i, key, KEY) != 0)
            continue;
        const char *value = at + i + KEY + sizeof len;
        const size_t left = n - i - KEY - sizeof len;
        memcpy(&len, at + i + KEY, sizeof len);
        if (len == 7 && begins(value, left, "imatrix"))
            return OUTPUT_IMPORTANCE;
        return len == 5 && begins(value, left, "model") ? OUTPUT_MODEL : OUTPUT_GGUF;
    }
    return OUTPUT_MODEL;
}

/* Matrices of ours are known by the name of the first. */
static enum output_kind safetensors_kind(const char *at, size_t n)
{
    static const char *const own[] = {"{\"logits\"", "{\"hidden.", "{}"};
    for (size_t i = 0; i < sizeof own / sizeof *own; i++)
        if (begins(at, n, own[i]))
            return OUTPUT_MATRICES;
    size_t k = 3;
    while (n > 3 && k < n && isdigit((unsigned char)at[k]))
        k++;
    const bool draft = begins(at, n, "{\"n") && k > 3 && begins(at + k, n - k, ".");
    return draft ? OUTPUT_MATRICES : OUTPUT_WEIGHTS;
}

static bool is_trace(const char *at, size_t n)
{
    size_t i = 0;
    for (int part = 0; part < 3; part++) {
        const size_t from = i;
        while (i < n && isdigit((unsigned char)at[i]))
            i++;
        if (i == from || i == n || at[i++] != (part < 2 ? ',' : '\n'))
            return false;
    }
    return true;
}

/* The older form of importance: the number of entries, then the first one's name. */
static bool is_dat(const char *at, size_t n)
{
    int32_t v[2];
    if (n < sizeof v + 4)
        return false;
    memcpy(v, at, sizeof v);
    if (v[0] < 1 || v[0] > 65536 || v[1] < 4 || v[1] > 1024 || (size_t)v[1] > n - sizeof v)
        return false;
    for (int32_t i = 0; i < v[1]; i++)
        if (!isgraph((unsigned char)at[sizeof v + (size_t)i]))
            return false;
    return true;
}

static bool is_chat(int dir, const char *path)
{
    char *text;
    size_t n;
    struct json_object *o = NULL, *role;
    if (dir != AT_FDCWD || file_slurp(path, MOST_CHAT, &text, &n, NULL))
        return false;
    bool is = !json_parse(text, n, NULL, &o, NULL) && json_object_is_type(o, json_type_array);
    mem_free(text);
    for (size_t i = 0; is && i < json_object_array_length(o); i++) {
        struct json_object *one = json_object_array_get_idx(o, i);
        is = json_object_is_type(one, json_type_object) &&
             json_object_object_get_ex(one, "role", &role);
    }
    json_object_put(o);
    return is;
}

static enum output_kind text_kind(int dir, const char *path, const char *at, size_t n)
{
    size_t i = 0;
    while (i < n && isspace((unsigned char)at[i]))
        i++;
    if (i < n && at[i] == '[')
        return is_chat(dir, path) ? OUTPUT_CHAT : OUTPUT_JSON;
    if (i < n && at[i] == '{')
        return find_bytes(at, n, "\"identity\": \"") && find_bytes(at, n, "\"layers\": [")
                   ? OUTPUT_COUNTS
                   : OUTPUT_JSON;
    if (i + 5 < n && (begins(at + i, n - i, "<!") || begins(at + i, n - i, "<html")))
        return find_bytes(at, n, "<title>ingle eval</title>") ? OUTPUT_HTML : OUTPUT_PAGE;
    return is_trace(at, n) ? OUTPUT_TRACE : memchr(at, 0, n) ? OUTPUT_UNKNOWN : OUTPUT_TEXT;
}

static enum output_kind kind_of_head(int dir, const char *path, const char *at, size_t n)
{
    if (!n)
        return OUTPUT_EMPTY;
    if (begins(at, n, "GGUF"))
        return gguf_kind(at, n);
    if (n > 9 && at[8] == '{' && !at[4] && !at[5] && !at[6] && !at[7])
        return safetensors_kind(at + 8, n - 8);
    if (begins(at, n, "ingle kv"))
        return OUTPUT_SESSION;
    if (begins(at, n, "ingle experts\r\n"))
        return OUTPUT_PROFILE;
    if (n > 6 && begins(at, n, "ingleG") && at[7] == '\n')
        return OUTPUT_REQUESTS;
    return is_dat(at, n) ? OUTPUT_IMPORTANCE : text_kind(dir, path, at, n);
}

/* ESTALE: another machine has removed it from a file system that both have. */
static bool is_closed(int e)
{
    return e == ENOENT || e == ESTALE;
}

/* The first bytes of a file, *n of them (0 if it does not exist); false: it cannot be read. */
static bool read_head(int dir, const char *path, char at[HEAD], size_t *n)
{
    /* A link is followed: its name would become a file, and the model that it names would be
     * missing from there. */
    const int fd = openat(dir, path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    ssize_t got = 1;
    *n = 0;
    if (fd < 0)
        return is_closed(errno);
    while (got > 0 && *n < HEAD) {
        got = read(fd, at + *n, HEAD - *n);
        *n += got > 0 ? (size_t)got : 0;
        got = got < 0 && errno == EINTR ? 1 : got;
    }
    const bool closed = got < 0 && is_closed(errno);
    *n = closed ? 0 : *n;
    close(fd);
    return got >= 0 || closed;
}

enum output_kind output_kind_at(int dir, const char *path)
{
    struct stat st;
    char at[HEAD]; /* no allocation: that one fails is no kind of file */
    size_t n;
    if (fstatat(dir, path, &st, 0) != 0 && is_closed(errno))
        return OUTPUT_EMPTY;
    return read_head(dir, path, at, &n) ? kind_of_head(dir, path, at, n) : OUTPUT_UNKNOWN;
}

enum output_kind output_kind_of(const char *path)
{
    return output_kind_at(AT_FDCWD, path);
}

/* ---- what a call reads ---- */

struct place { /* a name in a directory */
    dev_t dev;
    ino_t ino;
    char *name;
};

struct seen {
    dev_t dev;
    ino_t ino;
    struct place place;
    /* is: there is a file; whole: it is a directory whose files are a checkpoint's */
    bool is, whole;
    bool sibling; /* a file of such a directory that nobody named */
    /* beside: the directory has .safetensors files, so no GGUF file in it is read */
    bool weights;
    size_t by;
};

struct output_guard {
    struct seen *in, *out;
    size_t n_in, cap_in, n_out, cap_out;
    char **by;
    size_t n_by, cap_by;
};

/* A copy of the path's directory. */
static char *dir_of(const char *path)
{
    const char *slash = strrchr(path, '/');
    return !slash          ? mem_strdup(".")
           : slash == path ? mem_strdup("/")
                           : mem_strndup(path, (size_t)(slash - path));
}

/* Where path is, or will be. */
static ingle_status stat_output(const char *path, struct seen *out, struct err *err)
{
    struct stat st;
    *out = (struct seen){0};
    char *dir = dir_of(path);
    out->place.name = mem_strdup(str_last_name(path));
    if (!dir || !out->place.name) {
        mem_free(dir);
        mem_free(out->place.name);
        return err_set(err, INGLE_NOMEM, "no memory for a path");
    }
    if (stat(dir, &st) == 0) {
        out->place.dev = st.st_dev;
        out->place.ino = st.st_ino;
    } else {
        mem_free(out->place.name);
        out->place.name = NULL;
    }
    mem_free(dir);
    if (stat(path, &st) == 0 && (S_ISREG(st.st_mode) || S_ISDIR(st.st_mode))) {
        out->is = true;
        out->whole = S_ISDIR(st.st_mode);
        out->dev = st.st_dev;
        out->ino = st.st_ino;
    }
    return INGLE_OK;
}

static bool same(const struct seen *a, const struct seen *b)
{
    if (a->is && b->is && a->dev == b->dev && a->ino == b->ino)
        return true;
    return a->place.name && b->place.name && a->place.dev == b->place.dev &&
           a->place.ino == b->place.ino && strcmp(a->place.name, b->place.name) == 0;
}

/* Names that readers of a checkpoint look for. */
static bool is_checkpoint_name(const char *name)
{
    static const char *const end[] = {".safetensors",    ".safetensors.index.json",
                                      ".bin.index.json", "_model.bin",
                                      ".jinja",          ".pth"};
    static const char *const whole[] = {"config.json",
                                        "generation_config.json",
                                        "tokenizer.json",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "added_tokens.json",
                                        "vocab.json",
                                        "merges.txt",
                                        "chat_template.json",
                                        "preprocessor_config.json",
                                        "processor_config.json",
                                        "hf_quant_config.json",
                                        "quantize_config.json",
                                        "params.json",
                                        "tokenizer.model"};
    for (size_t i = 0; i < sizeof end / sizeof *end; i++)
        if (str_ends(name, end[i]))
            return true;
    for (size_t i = 0; i < sizeof whole / sizeof *whole; i++)
        if (strcmp(name, whole[i]) == 0)
            return true;
    return false;
}

/* What ingle itself writes, and each writer replaces by its own kind only: in a checkpoint's folder
 * it is no part of that. */
static bool is_state(enum output_kind kind)
{
    return kind == OUTPUT_MATRICES || kind == OUTPUT_HTML || kind == OUTPUT_PROFILE ||
           kind == OUTPUT_TRACE || kind == OUTPUT_COUNTS || kind == OUTPUT_SESSION ||
           kind == OUTPUT_IMPORTANCE || kind == OUTPUT_EMPTY;
}

ingle_status output_guard_create(struct output_guard **out, struct err *err)
{
    *out = mem_zalloc(sizeof **out);
    return *out ? INGLE_OK : err_set(err, INGLE_NOMEM, "no memory for a list of files");
}

void output_guard_free(struct output_guard *g)
{
    if (!g)
        return;
    for (size_t i = 0; i < g->n_in; i++)
        mem_free(g->in[i].place.name);
    for (size_t i = 0; i < g->n_out; i++)
        mem_free(g->out[i].place.name);
    for (size_t i = 0; i < g->n_by; i++)
        mem_free(g->by[i]);
    mem_free(g->in);
    mem_free(g->out);
    mem_free(g->by);
    mem_free(g);
}

static ingle_status add_by(struct output_guard *g, const char *by, size_t *at, struct err *err)
{
    char *copy = mem_strdup(by);
    if (!copy || !mem_grow(&g->by, &g->cap_by, g->n_by + 1, sizeof *g->by)) {
        mem_free(copy);
        return err_set(err, INGLE_NOMEM, "no memory for a list of files");
    }
    *at = g->n_by;
    g->by[g->n_by++] = copy;
    return INGLE_OK;
}

static ingle_status add_seen(struct seen **list, size_t *n, size_t *cap, const struct seen *s,
                             struct err *err)
{
    if (*n >= MOST_FILES)
        return err_set(err, INGLE_LIMIT, "more than %d files are read", MOST_FILES);
    if (!mem_grow(list, cap, *n + 1, sizeof **list))
        return err_set(err, INGLE_NOMEM, "no memory for a list of files");
    (*list)[(*n)++] = *s;
    return INGLE_OK;
}

static ingle_status add_path(struct output_guard *g, size_t by, const char *path, struct seen *out,
                             struct err *err)
{
    struct seen s;
    ingle_status st = stat_output(path, &s, err);
    if (st)
        return st;
    s.by = by;
    st = add_seen(&g->in, &g->n_in, &g->cap_in, &s, err);
    if (st)
        mem_free(s.place.name);
    else if (out)
        *out = s;
    return st;
}

/* All files that stand directly in it, also targets of links. */
static ingle_status add_directory(struct output_guard *g, size_t by, const char *path,
                                  struct err *err)
{
    ingle_status st = INGLE_OK;
    DIR *d = opendir(path);
    bool weights = false;
    for (struct dirent *e; d && (e = readdir(d));)
        weights = weights || str_ends(e->d_name, ".safetensors");
    if (d)
        rewinddir(d);
    for (struct dirent *e; d && !st && (e = readdir(d));) {
        struct stat is;
        /* Those of a call that was ended have a list of their own. */
        if (fstatat(dirfd(d), e->d_name, &is, 0) != 0 || !S_ISREG(is.st_mode) ||
            str_ends(e->d_name, ".part") || str_ends(e->d_name, ".part.state"))
            continue;
        const struct seen s = {.dev = is.st_dev,
                               .ino = is.st_ino,
                               .is = true,
                               .sibling = true,
                               .weights = weights,
                               .by = by};
        st = add_seen(&g->in, &g->n_in, &g->cap_in, &s, err);
    }
    if (d)
        closedir(d);
    return st;
}

/* PREFIX-00001-of-00003END: where the first number stands, and how many there are; false: it is no
 * such name. */
static bool is_part(const char *path, size_t *at, unsigned *count)
{
    enum { NUMBERS = sizeof "-00001-of-00003" - 1 };
    const char *name = str_last_name(path), *dot = strrchr(name, '.');
    if (!dot || dot - name < NUMBERS)
        return false;
    const char *from = dot - NUMBERS;
    for (int i = 0; i < NUMBERS; i++) {
        const char want = "-#####-of-#####"[i];
        if (want == '#' ? !isdigit((unsigned char)from[i]) : from[i] != want)
            return false;
    }
    *at = (size_t)(from - path);
    *count = 0;
    for (int i = 10; i < NUMBERS; i++)
        *count = *count * 10 + (unsigned)(from[i] - '0');
    return *count >= 1 && *count <= MOST_PARTS;
}

static ingle_status add_parts(struct output_guard *g, size_t by, const char *path, size_t at,
                              unsigned count, struct err *err)
{
    ingle_status st = INGLE_OK;
    for (unsigned i = 1; i <= count && !st; i++) {
        struct str part;
        str_init(&part);
        str_add(&part, path, at);
        str_addf(&part, "-%05u-of-%05u%s", i, count, strrchr(path, '.'));
        st = str_ok(&part) ? add_path(g, by, part.at, NULL, err)
                           : err_set(err, INGLE_NOMEM, "no memory for a path");
        str_release(&part);
    }
    return st;
}

/* A .safetensors file with its config.json is one of a checkpoint, an index always. */
static bool is_of_checkpoint(const char *path, const char *dir)
{
    struct stat st;
    struct str config;
    str_init(&config);
    str_addf(&config, "%s/config.json", dir);
    const bool is =
        str_ends(path, ".safetensors.index.json") ||
        (str_ends(path, ".safetensors") && str_ok(&config) && stat(config.at, &st) == 0);
    str_release(&config);
    return is;
}

ingle_status output_guard_reads(struct output_guard *g, const char *by, const char *path,
                                bool model, struct err *err)
{
    struct seen s;
    size_t at, own;
    unsigned count;
    ingle_status st = add_by(g, by, &own, err);
    if (!st)
        st = add_path(g, own, path, &s, err);
    if (st || (s.is && s.whole))
        return st ? st : add_directory(g, own, path, err);
    if (is_part(path, &at, &count))
        st = add_parts(g, own, path, at, count, err);
    if (st || !s.is || !model)
        return st;
    char *dir = dir_of(path);
    if (!dir)
        return err_set(err, INGLE_NOMEM, "no memory for a path");
    if (is_of_checkpoint(path, dir)) {
        st = add_path(g, own, dir, NULL, err);
        if (!st)
            st = add_directory(g, own, dir, err);
    }
    mem_free(dir);
    return st;
}

/* A GGUF file that ingle made of a checkpoint, or a later part of one. */
static bool is_converted(const char *path)
{
    static const char key[] = OUTPUT_CONVERTED "\x08\0\0\0"; /* and the type of a string */
    char at[HEAD];
    size_t n, no;
    unsigned count;
    struct str first;
    bool is = read_head(AT_FDCWD, path, at, &n) && begins(at, n, "GGUF");
    bool marked = false;
    if (is && is_part(path, &no, &count) && find_bytes(at, n, "split.no")) {
        str_init(&first);
        str_add(&first, path, no);
        str_addf(&first, "-00001-of-%05u%s", count, strrchr(path, '.'));
        is = str_ok(&first) && read_head(AT_FDCWD, first.at, at, &n) && begins(at, n, "GGUF");
        str_release(&first);
    }
    for (size_t i = 0; is && !marked && i + sizeof key - 1 <= n; i++)
        marked = memcmp(at + i, key, sizeof key - 1) == 0;
    return marked;
}

/* NULL: nothing of that is read.  *is: it is that file, and not only one of its folder by name. */
static const struct seen *find_read(const struct output_guard *g, const struct seen *s,
                                    const char *path, bool *is)
{
    const struct seen *in = g->in, *sibling = NULL;
    const size_t n = g->n_in;
    *is = in != NULL;
    if (!in)
        return NULL;
    for (size_t i = 0; i < n; i++)
        if (same(&in[i], s) && !in[i].sibling)
            return &in[i];
        else if (same(&in[i], s))
            sibling = &in[i];
    if (sibling && !is_state(output_kind_of(path)) && !(sibling->weights && is_converted(path)))
        return sibling;
    *is = false;
    for (size_t i = 0; i < n && s->place.name && is_checkpoint_name(s->place.name); i++)
        if (in[i].whole && in[i].dev == s->place.dev && in[i].ino == s->place.ino)
            return &in[i];
    return NULL;
}

ingle_status output_guard_check(const struct output_guard *g, const char *path, struct err *err)
{
    struct seen s;
    bool is;
    ingle_status st = stat_output(path, &s, err);
    if (st)
        return st;
    const struct seen *in = find_read(g, &s, path, &is);
    if (in && !is)
        st = err_set(err, INGLE_ARG,
                     "%s: would be a file of the checkpoint that is read (%s): choose another name "
                     "or folder",
                     path, g->by[in->by]);
    else if (in && in->sibling)
        st = err_set(err, INGLE_ARG,
                     "%s: is a file of the folder that is read (%s) and is not overwritten: choose "
                     "another name",
                     path, g->by[in->by]);
    else if (in)
        st = err_set(err, INGLE_ARG,
                     "%s: is a file that is read (%s) and is not overwritten: choose another name",
                     path, g->by[in->by]);
    mem_free(s.place.name);
    return st;
}

ingle_status output_guard_writes(struct output_guard *g, const char *by, const char *path,
                                 struct err *err)
{
    struct seen s;
    size_t own;
    ingle_status st = output_guard_check(g, path, err);
    if (!st)
        st = stat_output(path, &s, err);
    if (st)
        return st;
    for (size_t i = 0; i < g->n_out && !st; i++)
        if (same(&g->out[i], &s))
            st = err_set(err, INGLE_ARG, "%s: is written twice, by %s and %s", path,
                         g->by[g->out[i].by], by);
    if (!st)
        st = add_by(g, by, &own, err);
    if (!st) {
        s.by = own;
        st = add_seen(&g->out, &g->n_out, &g->cap_out, &s, err);
    }
    if (st)
        mem_free(s.place.name);
    return st;
}

/* ---- writing ---- */

static ingle_status check_kind(const struct output *o, struct err *err)
{
    struct stat st;
    if (o->force || o->kind == OUTPUT_ANY || stat(o->path, &st) != 0 || !S_ISREG(st.st_mode))
        return INGLE_OK; /* the writer says what is wrong with other things than files */
    const enum output_kind is = output_kind_of(o->path);
    if (is == OUTPUT_EMPTY || is == o->kind)
        return INGLE_OK;
    return err_set(err, INGLE_ARG,
                   "%s: is there, is %s and not %s, and stays: choose another name, or remove it",
                   o->path, output_kind_name(is), output_kind_name(o->kind));
}

/* Readers of checkpoints would take it for one of theirs. */
static ingle_status check_name(const struct output *o, struct err *err)
{
    static const char *const end[] = {".safetensors", ".json",  ".jinja",    ".py",
                                      ".md",          ".model", "_model.bin"};
    const char *name = str_last_name(o->path);
    if (o->kind != OUTPUT_MODEL && o->kind != OUTPUT_IMPORTANCE)
        return INGLE_OK;
    for (size_t i = 0; i < sizeof end / sizeof *end; i++)
        if (str_ends(name, end[i]))
            return err_set(err, INGLE_ARG,
                           "%s: a GGUF file does not get a name that ends in '%s': files of "
                           "checkpoints have it",
                           o->path, end[i]);
    return INGLE_OK;
}

ingle_status output_check(const struct output *o, struct err *err)
{
    ingle_status st = o->guard ? output_guard_check(o->guard, o->path, err) : INGLE_OK;
    if (!st)
        st = check_name(o, err);
    return st ? st : check_kind(o, err);
}

ingle_status output_open(struct file_new *f, const struct output *o, struct err *err)
{
    struct str part;
    ingle_status st = output_check(o, err);
    *f = (struct file_new){.fd = -1};
    if (!st && o->keep && o->guard) {
        str_init(&part);
        str_addf(&part, "%s.part", o->path);
        st = str_ok(&part) ? output_guard_check(o->guard, part.at, err)
                           : err_set(err, INGLE_NOMEM, "no memory for a path");
        str_release(&part);
    }
    if (st)
        return st;
    return o->keep ? file_new_again(f, o->path, err) : file_new_open(f, o->path, err);
}

ingle_status output_save(const struct output *o, const void *bytes, size_t n, struct err *err)
{
    struct file_new f;
    ingle_status st = output_open(&f, o, err);
    if (!st)
        st = file_new_write(&f, 0, bytes, n, err);
    if (!st)
        return file_new_finish(&f, err);
    file_new_drop(&f);
    return st;
}
