/* SPDX-License-Identifier: Apache-2.0 */
/* choose - which files of a repository a model, or its drafter, is made of. */
#include "hub/inner.h"

#include "base/drafter.h"
#include "base/mem.h"
#include "base/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { PART_DIGITS = 5, MARK = sizeof "-00001-of-00003" - 1, MOST_PARTS = 20000 };

static bool is_gguf(const char *path) { return str_ends_any_case(path, ".gguf"); }

/* Five digits, or -1. */
static long digits(const char *s)
{
    long n = 0;
    for (int i = 0; i < PART_DIGITS; i++) {
        if (s[i] < '0' || s[i] > '9')
            return -1;
        n = n * 10 + (s[i] - '0');
    }
    return n;
}

/* Length of a path without its part and its ending; of a whole file both numbers are 0. */
static size_t stem_of(const char *path, const char *ending, long *part, long *parts)
{
    const size_t n = strlen(path) - strlen(ending);
    *part = *parts = 0;
    if (n <= MARK || path[n - MARK] != '-' || strncmp(path + n - 9, "-of-", 4) != 0)
        return n;
    const long a = digits(path + n - MARK + 1), b = digits(path + n - PART_DIGITS);
    if (a < 0 || b < 0)
        return n;
    *part = a;
    *parts = b;
    return n - MARK;
}

bool hub_same_model(const char *a, const char *b)
{
    long part, parts, part2, parts2;
    const size_t n = stem_of(a, ".gguf", &part, &parts);
    return n == stem_of(b, ".gguf", &part2, &parts2) && parts == parts2 && strncmp(a, b, n) == 0;
}

/* ---- codes ---- */

static bool is_letter(char c)
{
    return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
           (unsigned char)c >= 0x80;
}

/* What else has this ending: encoders of images and sound ("mmproj-F16.gguf", "NAME-mmproj.gguf"),
 * importance of columns. */
bool hub_is_aside(const char *path)
{
    const char *base = str_last_name(path);
    for (const char *p = base; *p; p++)
        if ((p == base || !is_letter(p[-1])) && strncasecmp(p, "mmproj", 6) == 0)
            return true;
    return strncasecmp(base, "imatrix", 7) == 0 || str_ends_any_case(base, "imatrix.gguf");
}

bool hub_is_mmproj(const char *path)
{
    const char *base = str_last_name(path);
    for (const char *p = base; *p; p++)
        if ((p == base || !is_letter(p[-1])) && strncasecmp(p, "mmproj", 6) == 0)
            return is_gguf(path);
    return false;
}

/* also the end of the text */
static bool ends_code(char c) { return strchr("./ )],;", c) != NULL; }

/* How a candidate fits. */
enum how { EXACT_FILE, ANY_FILE, CODE, PLAIN_CODE, INNER, BEGINNING };

/* Whether the stem has the code as a word of its own: after a separator and at the end, or as its
 * folder.  INNER: another word follows, "Q4_0" of "E4B_q4_0-it".  BEGINNING: the code begins such a
 * word, "Q4" of "Q4_K_M". */
static bool has_code(const char *path, const char *code, enum how how)
{
    long part, parts;
    const size_t n = stem_of(path, ".gguf", &part, &parts), k = strlen(code);
    for (size_t i = 0; i + k <= n; i++) {
        const bool starts = i == 0 || !is_letter(path[i - 1]);
        const bool stops = how == BEGINNING ? path[i + k] == '_'
                           : how == INNER   ? path[i + k] == '-'
                                            : i + k == n || ends_code(path[i + k]);
        if (starts && stops && strncasecmp(path + i, code, k) == 0)
            return true;
    }
    return false;
}

/* "NAME.gguf", "FOLDER/NAME.gguf", any part of a split one. */
static bool is_file(const char *path, const char *code, bool exact)
{
    long part, parts, part2, parts2;
    const size_t n = stem_of(path, ".gguf", &part, &parts),
                 k = stem_of(code, ".gguf", &part2, &parts2);
    const bool inner = k < n && path[n - k - 1] == '/';
    if (k > n || (k < n && !inner) || (parts2 && parts != parts2))
        return false;
    return exact ? strncmp(path + n - k, code, k) == 0 : strncasecmp(path + n - k, code, k) == 0;
}

/* ---- candidates ---- */

struct wish {
    const char *code; /* "": any */
    bool models, drafters;
    enum how how;
};

static bool fits(const struct wish *w, const char *path)
{
    if (!is_gguf(path))
        return false;
    if (w->how <= ANY_FILE)
        return is_file(path, w->code, w->how == EXACT_FILE);
    if (hub_is_aside(path) || !(drafter_by_name(path) ? w->drafters : w->models))
        return false;
    if (!*w->code)
        return true;
    char dynamic[MOST_CODE + 4];
    snprintf(dynamic, sizeof dynamic, "UD-%s", w->code);
    return has_code(path, w->code, w->how) &&
           (w->how != PLAIN_CODE || !has_code(path, dynamic, CODE));
}

/* The first file of the only one that fits; NULL, and how many do. */
static const struct hub_file *find(const struct hub_list *l, const struct wish *w, size_t *n)
{
    const struct hub_file *found = NULL;
    *n = 0;
    for (size_t i = 0; i < l->n; i++) {
        long part, parts;
        if (!fits(w, l->at[i].path))
            continue;
        (void)stem_of(l->at[i].path, ".gguf", &part, &parts);
        if (part > 1)
            continue;
        *n += 1;
        found = &l->at[i];
    }
    return *n == 1 ? found : NULL;
}

/* In the order of what fits best. */
static const struct hub_file *search(const struct hub_list *l, const char *code, bool models,
                                     bool drafters, size_t *n)
{
    const bool file = str_ends_any_case(code, ".gguf") && strlen(code) > 5;
    const enum how from = file ? EXACT_FILE : CODE, to = file ? ANY_FILE : *code ? BEGINNING : CODE;
    const struct hub_file *f = NULL;
    *n = 0;
    for (int how = (int)from; how <= (int)to && !f; how++) {
        size_t k;
        f = find(l, &(struct wish){code, models, drafters, (enum how)how}, &k);
        if (!f && k && !file) { /* of several the usual one */
            const bool usual =
                !*code || (how == BEGINNING && strncasecmp(code, "Q4_K_M", strlen(code)) == 0);
            size_t one;
            f = usual ? find(l, &(struct wish){"Q4_K_M", models, drafters, PLAIN_CODE}, &one)
                      : NULL;
        }
        *n = f ? 1 : k ? k : *n;
        if (k && how >= PLAIN_CODE && !f)
            break;
    }
    return f;
}

/* The models, or drafters, of a list, for an error. */
static void put_names(const struct hub_list *l, bool drafters, char *out, size_t n)
{
    size_t k = 0;
    out[0] = 0;
    for (size_t i = 0; i < l->n && k + 8 < n; i++) {
        long part, parts;
        const char *path = l->at[i].path;
        if (!is_gguf(path) || hub_is_aside(path) || drafter_by_name(path) != drafters)
            continue;
        const size_t stem = stem_of(path, ".gguf", &part, &parts);
        if (part <= 1)
            k += (size_t)snprintf(out + k, n - k, "%s%.*s", k ? ", " : "",
                                  (int)(stem < 60 ? stem : 60), path);
    }
}

const char *hub_drafter(const struct hub_list *l, const char *code)
{
    size_t n;
    const struct hub_file *f = search(l, code, false, true, &n);
    for (size_t i = 0; !f && i < l->n; i++)
        if (fits(&(struct wish){"", false, true, CODE}, l->at[i].path))
            f = &l->at[i];
    return f ? f->path : NULL;
}

/* ---- all files of what was chosen ---- */

/* Wants the parts 1 to n of a split file, each once, or the only file. */
static ingle_status want_parts(struct hub_list *l, const char *first, const char *ending,
                               struct err *err)
{
    long part, parts, there = 0;
    const size_t stem = stem_of(first, ending, &part, &parts);
    const long most = parts ? parts : 1;
    if (most > MOST_PARTS || (parts && !part))
        return err_set(err, INGLE_FORMAT, "'%.200s' is part %ld of %ld", first, part, parts);
    bool *seen = mem_calloc((size_t)most, sizeof *seen);
    if (!seen)
        return err_set(err, INGLE_NOMEM, "no memory for the parts of '%.200s'", first);
    for (size_t i = 0; i < l->n; i++) {
        long no, of;
        const char *path = l->at[i].path;
        if (!str_ends_any_case(path, ending) || stem_of(path, ending, &no, &of) != stem ||
            strncmp(path, first, stem) != 0 || of != parts)
            continue;
        if (parts ? no < 1 || no > most || seen[no - 1] : strcmp(path, first) != 0)
            continue;
        seen[parts ? no - 1 : 0] = l->at[i].wanted = true;
        there++;
    }
    long missing = 1;
    while (missing <= most && seen[missing - 1])
        missing++;
    mem_free(seen);
    return there == most ? INGLE_OK
                         : err_set(err, INGLE_FORMAT,
                                   "the hub has %ld of the %ld parts of '%.200s', not part %ld",
                                   there, most, first, missing);
}

static bool of_checkpoint(const char *path)
{
    return !strchr(path, '/') &&
           (str_ends_any_case(path, ".safetensors") || str_ends_any_case(path, ".json") ||
            str_ends_any_case(path, ".jinja") || str_ends_any_case(path, ".model"));
}

/* A folder of safetensors; *is: whether there is one. */
static ingle_status want_checkpoint(struct hub_list *l, bool *is, struct err *err)
{
    bool weights = false, config = false;
    for (size_t i = 0; i < l->n; i++) {
        weights |= of_checkpoint(l->at[i].path) && str_ends_any_case(l->at[i].path, ".safetensors");
        config |= strcmp(l->at[i].path, "config.json") == 0;
    }
    *is = weights && config;
    ingle_status st = INGLE_OK;
    for (size_t i = 0; *is && !st && i < l->n; i++) {
        struct hub_file *f = &l->at[i];
        long part, parts;
        if (!of_checkpoint(f->path) || f->wanted)
            continue;
        f->wanted = true;
        if (str_ends_any_case(f->path, ".safetensors") &&
            (stem_of(f->path, ".safetensors", &part, &parts), parts))
            st = want_parts(l, f->path, ".safetensors", err);
    }
    return st;
}

/* ---- encoders of pictures and sound ---- */

/* In the folder of the model, which is where they are looked for. */
bool hub_same_folder(const char *path, const char *model)
{
    const size_t n = (size_t)(str_last_name(model) - model);
    return (size_t)(str_last_name(path) - path) == n && strncmp(path, model, n) == 0;
}

static struct hub_file *find_mmproj(struct hub_list *l, const char *model, const char *code)
{
    for (size_t i = 0; i < l->n; i++)
        if (hub_is_mmproj(l->at[i].path) && hub_same_folder(l->at[i].path, model) &&
            (!code || has_code(l->at[i].path, code, false)))
            return &l->at[i];
    return NULL;
}

static ingle_status want_mmproj(struct hub_list *l, const char *model, struct err *err)
{
    static const char *const usual[] = {"BF16", "F16", "Q8_0", "F32", NULL};
    struct hub_file *f = NULL;
    if (!l->mmproj || hub_is_aside(model) || drafter_by_name(model))
        return INGLE_OK;
    if (strcasecmp(l->mmproj, "auto") != 0) {
        f = find_mmproj(l, model, l->mmproj);
        if (!f)
            return err_set(err, INGLE_NOTFOUND,
                           "beside '%.200s' is no mmproj file of the type '%.40s'", model,
                           l->mmproj);
    }
    for (size_t i = 0; i < sizeof usual / sizeof *usual && !f; i++)
        f = find_mmproj(l, model, usual[i]);
    if (f)
        f->wanted = true;
    return INGLE_OK;
}

/* Parts without the first one. */
static const char *headless(const struct hub_list *l, const char *code)
{
    for (size_t i = 0; i < l->n; i++) {
        long part, parts;
        const char *path = l->at[i].path;
        if (fits(&(struct wish){str_ends_any_case(code, ".gguf") ? "" : code, true, true, CODE},
                 path) &&
            (stem_of(path, ".gguf", &part, &parts), part > 1))
            return path;
    }
    return NULL;
}

/* Whether a whole repository would give this file, too. */
static bool is_sure(const char *path, const char *code)
{
    return str_ends_any_case(code, ".gguf") || (has_code(path, code, CODE) &&
                                        fits(&(struct wish){code, true, true, PLAIN_CODE}, path));
}

/* "o/r" of an error or a note. */
static const char *repository(const struct hub_list *l)
{
    return l->repository[0] ? l->repository : "OWNER/NAME";
}

static ingle_status nothing_fits(const struct hub_list *l, const char *code, size_t n,
                                 struct err *err)
{
    char models[220];
    size_t n_drafters;
    put_names(l, false, models, sizeof models);
    const struct hub_file *f = search(l, code, false, true, &n_drafters);
    const char *drafter = f                          ? f->path
                          : n_drafters || !models[0] ? hub_drafter(l, "")
                                                     : NULL,
               *part = headless(l, code);
    if (n > 1)
        return err_set(err, INGLE_ARG,
                       "%zu files of the repository fit%s%.80s: name one by its code: %s", n,
                       *code ? " " : "", code, models);
    if (drafter)
        return err_set(
            err, INGLE_NOTFOUND,
            "the repository has no model%s%.80s%s, but a drafter: --draft hf:%s:%.120s%s%s",
            *code ? " of the code '" : "", code, *code ? "'" : "", repository(l), drafter,
            models[0] ? "; models: " : "", models);
    if (part)
        return err_set(err, INGLE_FORMAT, "the hub has '%.200s' but not the first one of its parts",
                       part);
    if (!models[0])
        return err_set(err, INGLE_NOTFOUND,
                       "the repository has neither GGUF files nor a checkpoint of safetensors");
    return err_set(err, INGLE_NOTFOUND, "the repository has no file of the code '%.80s': it has %s",
                   code, models);
}

static ingle_status choose(struct hub_list *l, const char *code, bool draft, const char **first,
                           struct err *err)
{
    size_t n = 0;
    const bool named = *code && drafter_by_name(code);
    const struct hub_file *f = draft || named ? search(l, code, false, true, &n) : NULL;
    if (!f && !n)
        f = search(l, code, true, false, &n);
    if (!f && !n && strcasecmp(code, "latest") == 0)
        return choose(l, "", draft, first, err);
    if (f) {
        *first = f->path;
        l->sure = (!*code ? has_code(f->path, "Q4_K_M", CODE) : is_sure(f->path, code)) &&
                  (!draft || drafter_by_name(f->path));
        const ingle_status st = want_parts(l, f->path, ".gguf", err);
        return st || draft ? st : want_mmproj(l, f->path, err);
    }
    bool is = false;
    char models[16];
    put_names(l, false, models, sizeof models);
    const ingle_status st = !*code && !models[0] ? want_checkpoint(l, &is, err) : INGLE_OK;
    if (st || is) {
        *first = "";
        l->sure = true;
        return st;
    }
    return nothing_fits(l, code, n, err);
}

ingle_status hub_want(struct hub_list *l, const char *first, struct err *err)
{
    bool is = true;
    ingle_status st =
        *first ? want_parts(l, first, ".gguf", err) : want_checkpoint(l, &is, err);
    if (!st && *first)
        st = want_mmproj(l, first, err);
    return st || is ? st : err_set(err, INGLE_NOTFOUND, "there is no checkpoint of safetensors");
}

ingle_status hub_choose(struct hub_list *l, const char *code, const char **first, struct err *err)
{
    return choose(l, code, false, first, err);
}

ingle_status hub_choose_drafter(struct hub_list *l, const char *code, const char **first,
                                struct err *err)
{
    return choose(l, code, true, first, err);
}
