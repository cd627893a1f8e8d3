/* SPDX-License-Identifier: Apache-2.0 */
#include "server/fields.h"
#include "server/params.h"

#include "server/write.h"

#include <float.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

enum kind {
    /* numbers and booleans; of a number of drafted tokens 0 is none and -1 as many as pay */
    NUMBER, COUNT, FLAG, NOT, DRAFTS, DRAFT, SEED,
    /* words and texts */
    METHOD, SPARSE, SELECT, KEEP, PICTURE, UNSUPPORTED, KEY,
    /* what is refused */
    REFUSED_BUT, REFUSED_ABOVE, REFUSED_BOOL
};
enum type { FLOAT, DOUBLE, INT, LONG, BOOL, OTHER, NOTHING };
enum echo { HIDDEN, SHOWN, AFTER, SET };
enum { LONGEST_NAMES = 96 };

static const struct param {
    const char *name, *also;
    enum kind kind;
    enum type type;
    double min, max; /* of what is refused max is what is accepted */
    size_t at;       /* of chat_request */
    enum echo echo;
    unsigned forms;
    const char *why; /* it is refused */
} params[] = {
#define CHAT PARAMS_CHAT
#define TEXT PARAMS_TEXT
#define NATIVE PARAMS_NATIVE
#define OLLAMA PARAMS_OLLAMA
#define MESSAGES PARAMS_MESSAGES
#define RESPONSES PARAMS_RESPONSES
#define DAEMON PARAMS_DAEMON
#define SPECULATIVE PARAMS_SPECULATIVE
#define STREAM_OPTIONS PARAMS_STREAM_OPTIONS
#define TYPE(member)                                                                               \
    _Generic(((const struct chat_request *)0)->member, float: FLOAT, double: DOUBLE, int: INT,     \
             int64_t: LONG, bool: BOOL, default: OTHER)
#define PARAM(name, also, kind, min, max, member, echo, forms, help)                               \
    {name,  also, kind, TYPE(member), (double)(min), (double)(max),                                \
     offsetof(struct chat_request, member), echo, forms, NULL},
#define CHECKED(name, kind, min, max, forms, help)                                                 \
    {name, "", kind, NOTHING, min, max, 0, HIDDEN, forms, NULL},
#define REFUSED(name, off, forms, why)                                                             \
    {name, "", REFUSED_BUT, NOTHING, 0, (double)(off), 0, HIDDEN, forms, why},
#define ABOVE(name, most, forms, why)                                                              \
    {name, "", REFUSED_ABOVE, NOTHING, 0, most, 0, HIDDEN, forms, why},
#define ONLY(name, value, forms, why)                                                              \
    {name, "", REFUSED_BOOL, NOTHING, 0, value, 0, HIDDEN, forms, why},
#include "server/params.inc"
};
enum { N_PARAMS = sizeof params / sizeof *params };

/* ---- numbers ---- */

static void read_number(struct chat_request *r, struct json_object *o, const char *name,
                        const struct param *p, struct fault *f)
{
    void *at = (char *)r + p->at;
    float v = p->type == FLOAT ? *(float *)at : p->type == DOUBLE ? (float)*(double *)at : 0;
    const float before = v;
    request_get_number(o, name, p->min, p->max, &v, f);
    if (p->type == FLOAT)
        *(float *)at = v;
    else if (p->type == DOUBLE && (v < before || v > before))
        *(double *)at = (double)v;
}

static int64_t count_at(const struct chat_request *r, const struct param *p)
{
    const void *at = (const char *)r + p->at;
    return p->type == LONG ? *(const int64_t *)at : p->type == INT ? *(const int *)at : 0;
}

static void set_count(struct chat_request *r, const struct param *p, int64_t v)
{
    void *at = (char *)r + p->at;
    if (p->type == LONG)
        *(int64_t *)at = v;
    else if (p->type == INT)
        *(int *)at = (int)v;
}

static void read_count(struct chat_request *r, struct json_object *o, const char *name,
                       const struct param *p, struct fault *f)
{
    int64_t v = count_at(r, p);
    request_get_int(o, name, (int64_t)p->min, (int64_t)p->max, &v, f);
    set_count(r, p, v);
}

static void read_drafts(struct chat_request *r, struct json_object *o, const char *name,
                        const struct param *p, struct fault *f)
{
    struct json_object *v = request_get(o, name);
    int64_t n = -1;
    if (p->kind == DRAFT && json_object_is_type(v, json_type_boolean)) {
        r->o.draft_max = json_object_get_boolean(v) ? 0 : -1;
        return;
    }
    request_get_int(o, name, (int64_t)p->min, (int64_t)p->max, &n, f);
    if (n >= 0)
        r->o.draft_max = n ? n : -1;
}

static void read_flag(struct chat_request *r, struct json_object *o, const char *name,
                      const struct param *p, struct fault *f)
{
    bool *at = (bool *)(void *)((char *)r + p->at);
    bool v = *at != (p->kind == NOT);
    request_get_bool(o, name, &v, f);
    *at = v != (p->kind == NOT);
}

/* ---- words ---- */

/* One of INGLE_DRAFT_METHODS, or llama-server's word for it ("draft-mtp", "ngram_simple").
 * Whether it is at hand is the scheduler's to say. */
static void read_method(struct chat_request *r, struct json_object *o, const char *name,
                        struct fault *f)
{
    static const char *const methods[] = {INGLE_DRAFT_METHODS};
    struct str word;
    str_init(&word);
    request_get_text(o, name, 64, &word, f);
    const char *w = str_ok(&word) ? word.at : "";
    if (strcmp(w, "draft") == 0)
        w = "auto";
    else if (strncmp(w, "draft-", 6) == 0 || strncmp(w, "draft_", 6) == 0)
        w = strcmp(w + 6, "simple") == 0 ? "model" : w + 6;
    else if (strncmp(w, "ngram-", 6) == 0 || strncmp(w, "ngram_", 6) == 0)
        w = "ngram";
    for (size_t i = 0; i < sizeof methods / sizeof *methods; i++)
        if (strcmp(methods[i], w) == 0)
            r->o.draft_method = methods[i];
    if (w[0] && (!r->o.draft_method || strcmp(w, r->o.draft_method)))
        request_fault(
            f, FAULT_REQUEST, name,
            "'%s' is '%.64s', which is none of auto, dflash, mtp, dspark, model, ngram and none",
            name, w);
    str_release(&word);
}

/* ---- what is refused ---- */

/* Nothing, or what says "off". */
static bool is_off(struct json_object *v, double off)
{
    if (request_is_number(v)) {
        const double d = json_object_get_double(v);
        return d >= off && d <= off;
    }
    return !v || (json_object_is_type(v, json_type_boolean) && !json_object_get_boolean(v)) ||
           (request_is_text(v) && !json_object_get_string_len(v)) ||
           (json_object_is_type(v, json_type_array) && !json_object_array_length(v)) ||
           (json_object_is_type(v, json_type_object) && !json_object_object_length(v));
}

void params_refuse_above(struct json_object *o, const char *name, int64_t most, const char *why,
                         struct fault *f)
{
    float v = -FLT_MAX;
    request_get_number(o, name, -(double)FLT_MAX, (double)FLT_MAX, &v, f);
    if (v > (float)most)
        request_fault(f, FAULT_REQUEST, name, "'%s' is %g and cannot be above %lld here: %s", name,
                      (double)v, (long long)most, why);
}

static void refuse(struct json_object *o, const struct param *p, struct fault *f)
{
    bool v = p->max > 0;
    if (p->kind == REFUSED_BUT && !is_off(request_get(o, p->name), p->max)) {
        request_fault(f, FAULT_REQUEST, p->name, "'%s' cannot be done here: %s", p->name, p->why);
    } else if (p->kind == REFUSED_ABOVE) {
        params_refuse_above(o, p->name, (int64_t)p->max, p->why, f);
    } else if (p->kind == REFUSED_BOOL) {
        request_get_bool(o, p->name, &v, f);
        if (v != (p->max > 0))
            request_fault(f, FAULT_REQUEST, p->name, "'%s' cannot be %s here: %s", p->name,
                          v ? "true" : "false", p->why);
    }
}

/* ---- all of it ---- */

static void read_one(struct chat_request *r, struct json_object *o, const char *name,
                     const struct param *p, struct fault *f)
{
    switch (p->kind) {
    case NUMBER:
        read_number(r, o, name, p, f);
        break;
    case COUNT:
        read_count(r, o, name, p, f);
        break;
    case FLAG:
    case NOT:
        read_flag(r, o, name, p, f);
        break;
    case DRAFTS:
    case DRAFT:
        read_drafts(r, o, name, p, f);
        break;
    case SEED:
        request_get_seed(o, name, r, f);
        break;
    case METHOD:
        read_method(r, o, name, f);
        break;
    case SPARSE:
    case SELECT:
        request_get_way(o, name, p->kind == SPARSE ? INGLE_WAY_SPARSE : INGLE_WAY_SELECT, &r->way,
                        f);
        break;
    case KEEP:
        request_get_keep(o, name, p->min, r, f);
        break;
    case PICTURE:
        request_get_image_tokens(o, name, r, f);
        break;
    case UNSUPPORTED:
        request_get_unsupported(o, name, r, f);
        break;
    case KEY:
        request_get_cache_key(o, name, r);
        break;
    case REFUSED_BUT:
    case REFUSED_ABOVE:
    case REFUSED_BOOL:
        refuse(o, p, f);
        break;
    }
}

/* The first of the words at *list into word; false: there is none. */
static bool next_word(const char **list, char word[LONGEST_NAMES])
{
    const size_t n = strcspn(*list, " ");
    if (!n || n >= LONGEST_NAMES)
        return false;
    memcpy(word, *list, n);
    word[n] = 0;
    *list += n + ((*list)[n] == ' ');
    return true;
}

void params_read(struct chat_request *r, struct json_object *o, enum params_form form,
                 struct fault *f)
{
    char word[LONGEST_NAMES];
    for (const struct param *p = params; p < params + N_PARAMS && !f->kind; p++) {
        const char *also = p->also;
        if (!(p->forms & (unsigned)form))
            continue;
        while (next_word(&also, word))
            read_one(r, o, word, p, f);
        read_one(r, o, p->name, p, f);
    }
}

static void write_text_of(const struct chat_request *r, const struct param *p, struct str *out)
{
    const char *text = p->kind == METHOD ? r->o.draft_method : (const char *)r + p->at;
    if (text && *text)
        write_member(out, p->name, text);
}

static void write_one(const struct chat_request *r, const struct param *p, struct str *out)
{
    const void *at = (const char *)r + p->at;
    const int64_t n = count_at(r, p);
    if (p->kind == METHOD || p->kind == SPARSE || p->kind == SELECT) {
        write_text_of(r, p, out);
    } else if (p->kind == KEEP) {
        if (r->keep_requested)
            write_member_number(out, p->name, r->prompt_keep);
    } else if (p->kind == SEED) {
        write_key(out, p->name);
        write_uint(out, r->o.sampling.seed);
    } else if (p->type == FLOAT) {
        write_key(out, p->name);
        write_float(out, *(const float *)at);
    } else if (p->type == BOOL) {
        write_member_bool(out, p->name, *(const bool *)at);
    } else if (p->echo != SET || n) {
        write_member_int(out, p->name, p->kind == DRAFTS && n < 0 ? 0 : n);
    }
}

void params_write(const struct chat_request *r, bool after, struct str *out)
{
    for (const struct param *p = params; p < params + N_PARAMS; p++)
        if ((p->forms & PARAMS_NATIVE) && p->echo != HIDDEN && (p->echo != SHOWN) == after)
            write_one(r, p, out);
}

const char *params_name(enum params_form form, size_t i)
{
    for (const struct param *p = params; p < params + N_PARAMS; p++)
        if ((p->forms & (unsigned)form) && !i--)
            return p->name;
    return NULL;
}
