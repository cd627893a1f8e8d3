/* SPDX-License-Identifier: Apache-2.0 */
#include "engine/engine.h"
#include "engine/way.h"
#include "engine/plan.h"

#include "base/bug.h"
#include "base/mem.h"
#include "base/near.h"
#include "base/num.h"
#include "base/str.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

static const struct ingle_option table[] = {
#define OPTION(name_, letter_, kind_, min_, max_, default_, value_, choices_, group_, where_, ...) \
    {.name = name_, .letter = letter_, .kind = INGLE_OPTION_##kind_, .min = (double)(min_),        \
     .max = (double)(max_), .fallback = default_, .value = value_, .choices = choices_,            \
     .group = group_, .where = where_, .help = __VA_ARGS__},
#define ENGINE(member_)                                                                            \
    .member = {offsetof(struct ingle_engine_options, member_),                                     \
               _Generic(((const struct ingle_engine_options *)0)->member_,                         \
                        bool: INGLE_MEMBER_BOOL, int: INGLE_MEMBER_INT,                            \
                        int64_t: INGLE_MEMBER_INT64, uint64_t: INGLE_MEMBER_UINT64,                \
                        double: INGLE_MEMBER_DOUBLE,                                               \
                        const char *: INGLE_MEMBER_TEXT)}
#define NEEDS(name_) .needs = name_
#include "engine/options.inc"
#undef OPTION
#undef ENGINE
#undef NEEDS
};
enum { N_OPTIONS = sizeof table / sizeof *table };

struct ingle_config {
    struct {
        char **text;   /* what was set, the last one counts except for lists */
        size_t *place; /* [n] which of all that were set each was */
        size_t n, cap, cap_places;
    } value[N_OPTIONS];
    size_t n_set;
    struct ingle_bias *bias; /* [n_bias], from logit-bias */
    size_t n_bias, cap_bias;
};

const struct ingle_option *ingle_options(size_t *n)
{
    *n = N_OPTIONS;
    return table;
}

/* True when `word` is one of the words of `list`. */
static bool has_word(const char *list, const char *word, size_t n_word)
{
    for (const char *p = list; *p;) {
        const size_t n = strcspn(p, " ");
        if (n == n_word && memcmp(p, word, n) == 0)
            return true;
        p += n;
        p += strspn(p, " ");
    }
    return false;
}

/* A word of `choices`, or with "K:V" among them two with a colon between. */
static bool is_choice(const char *choices, const char *text)
{
    const size_t n = strlen(text), first = strcspn(text, ":");
    if (has_word(choices, text, n))
        return true;
    return first < n && has_word(choices, "K:V", 3) && has_word(choices, text, first) &&
           has_word(choices, text + first + 1, n - first - 1);
}

static bool applies(const struct ingle_option *o, const char *where)
{
    return !where || strcmp(o->where, "*") == 0 || has_word(o->where, where, strlen(where));
}

static const struct ingle_option *find(const char *name)
{
    for (size_t i = 0; i < N_OPTIONS; i++)
        if (strcmp(table[i].name, name) == 0)
            return &table[i];
    return NULL;
}

/* For our own lookups: a name that is not in the table is our mistake. */
static size_t index_of(const char *name)
{
    const struct ingle_option *o = find(name);
    if (!o)
        BUG("an option that is not in the table");
    return (size_t)(o - table);
}

static ingle_status unknown(const char *where, const char *name, struct err *err)
{
    const char *word[N_OPTIONS];
    size_t n = 0;
    for (size_t i = 0; i < N_OPTIONS; i++)
        if (applies(&table[i], where))
            word[n++] = table[i].name;
    const struct ingle_option *other = find(name);
    if (other)
        return err_set(err, INGLE_NOTFOUND,
                       "'%s' does not take option '--%s', which belongs to: %s", where, name,
                       other->where);
    const char *meant = near_word(word, n, name);
    return err_set(err, INGLE_NOTFOUND, "there is no option '--%s'%s%s%s", name,
                   meant ? "; did you mean '--" : "", meant ? meant : "", meant ? "'?" : "");
}

static bool parse_number(const char *text, double *out)
{
    char *end;
    const double v = str_to_double(text, &end);
    if (end == text || *end || isnan(v) || *text == ' ')
        return false;
    *out = v;
    return true;
}

/* 512, 12.5G, 100MiB */
static bool parse_size(const char *text, double *out)
{
    char *end;
    double v = str_to_double(text, &end);
    if (end == text || !(v >= 0) || *text == ' ')
        return false;
    static const char units[] = "kmgt";
    const char *u = *end ? strchr(units, *end | 0x20) : NULL;
    if (u) {
        for (ptrdiff_t i = u - units; i >= 0; i--)
            v *= 1024;
        end++;
        if (end[0] == 'i')
            end++;
    }
    if (*end == 'B' || *end == 'b')
        end++;
    if (*end)
        return false;
    *out = floor(v);
    return true;
}

static bool value_of(const struct ingle_option *o, const char *text, double *out)
{
    *out = 0; /* the word that a size may be instead */
    if (o->kind == INGLE_OPTION_SIZE)
        return (o->choices && strcmp(text, o->choices) == 0) || parse_size(text, out);
    return parse_number(text, out) && (o->kind != INGLE_OPTION_INT || *out == floor(*out));
}

/* What a flag's value says: 1 yes (also NULL and nothing), 0 no, -1 it is no such word. */
static int truth(const char *text)
{
    static const char *const yes[] = {"1", "true", "on", "yes", "enabled"}, *const no[] = {
                                                                                "0", "false", "off",
                                                                                "no", "disabled"};
    if (!text || !*text)
        return 1;
    for (size_t i = 0; i < sizeof yes / sizeof *yes; i++)
        if (strcasecmp(text, yes[i]) == 0)
            return 1;
    for (size_t i = 0; i < sizeof no / sizeof *no; i++)
        if (strcasecmp(text, no[i]) == 0)
            return 0;
    return -1;
}

/* Options with NAME=VALUE, whose names are those of the options of a group, with or without what
 * these begin with. */
static const struct named {
    const char *option, *group, *begin;
} named[] = {{"experiment", "experiments", "draft-"}, {"limit", "limits", "max-"}};

/* "port"; "limit body" */
static void spell(const struct ingle_option *o, char *out, size_t n)
{
    snprintf(out, n, "%s", o->name);
    for (size_t i = 0; i < sizeof named / sizeof *named; i++) {
        const size_t k = strlen(named[i].begin);
        if (strcmp(o->group, named[i].group) == 0)
            snprintf(out, n, "%s %s", named[i].option,
                     strncmp(o->name, named[i].begin, k) == 0 ? o->name + k : o->name);
    }
}

static ingle_status check(const struct ingle_option *o, const char *text, struct err *err)
{
    double v = 0;
    char name[60];
    spell(o, name, sizeof name);
    struct kv_types types;
    switch (o->kind) {
    case INGLE_OPTION_FLAG:
        if (truth(text) < 0)
            return err_set(err, INGLE_ARG,
                           "option '--%s' is on or off (true or false), not '%.60s'", name,
                           text);
        return INGLE_OK;
    case INGLE_OPTION_INT:
    case INGLE_OPTION_NUMBER:
    case INGLE_OPTION_SIZE:
        if (!text || !value_of(o, text, &v))
            return err_set(err, INGLE_ARG, "option '--%s' needs a %s, not '%s'", name,
                           o->kind == INGLE_OPTION_INT    ? "whole number"
                           : o->kind == INGLE_OPTION_SIZE ? "size such as 512M"
                                                          : "number",
                           text ? text : "");
        if (!(v >= o->min && v <= o->max))
            return err_set(err, INGLE_ARG, "option '--%s': %s is outside %.16g to %.16g", name,
                           text, o->min, o->max);
        return INGLE_OK;
    case INGLE_OPTION_CHOICE:
        if (text && strcmp(o->name, "kv") == 0 && strcmp(text, "q8_0v") == 0)
            return kv_types_parse(text, NULL, NULL, NULL, &types, err);
        if (!text || !is_choice(o->choices, text))
            return err_set(err, INGLE_ARG, "option '--%s': '%s' is none of %s", name,
                           text ? text : "", o->choices);
        return INGLE_OK;
    case INGLE_OPTION_TEXT:
    case INGLE_OPTION_LIST:
        break;
    }
    /* A system message may be nothing; no file, name or address can. */
    if (!text || (!*text && strcmp(o->name, "system") != 0))
        return err_set(err, INGLE_ARG, "option '--%s' needs a value", name);
    return INGLE_OK;
}

ingle_status ingle_config_open(struct ingle_config **out, struct ingle_error *error)
{
    struct err err;
    struct ingle_config *c = mem_zalloc(sizeof *c);
    if (!c)
        return engine_say(error, err_set(&err, INGLE_NOMEM, "no memory for the options"), &err);
    *out = c;
    return INGLE_OK;
}

void ingle_config_close(struct ingle_config *c)
{
    if (!c)
        return;
    for (size_t i = 0; i < N_OPTIONS; i++) {
        for (size_t j = 0; j < c->value[i].n; j++)
            mem_free(c->value[i].text[j]);
        mem_free(c->value[i].text);
        mem_free(c->value[i].place);
    }
    mem_free(c->bias);
    mem_free(c);
}

/* "ID=X" */
static ingle_status add_bias(struct ingle_config *c, const char *text, struct err *err)
{
    char *end;
    const long id = strtol(text, &end, 10);
    char *last;
    const float bias = *end == '=' || *end == ':' ? (float)str_to_double(end + 1, &last) : 0;
    if (end == text || (*end != '=' && *end != ':') || last == end + 1 || *last || isnan(bias) ||
        id < 0 || id > INT32_MAX)
        return err_set(err, INGLE_ARG, "option '--logit-bias' needs ID=NUMBER, not '%s'", text);
    if (!mem_grow(&c->bias, &c->cap_bias, c->n_bias + 1, sizeof *c->bias))
        return err_set(err, INGLE_NOMEM, "no memory for a logit bias");
    c->bias[c->n_bias++] = (struct ingle_bias){(int32_t)id, bias};
    return INGLE_OK;
}

static bool image_tokens_of(const char *text, int32_t *out)
{
    static const struct {
        const char *name;
        int32_t n;
    } known[] = {{"default", INGLE_MEDIA_BUDGET},
                 {"auto", INGLE_MEDIA_AUTO},
                 {"70", 70},
                 {"140", 140},
                 {"280", 280},
                 {"560", 560},
                 {"1120", 1120}};
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (strcmp(text, known[i].name) == 0) {
            *out = known[i].n;
            return true;
        }
    return false;
}

static const struct named *named_of(const char *name)
{
    for (size_t i = 0; i < sizeof named / sizeof *named; i++)
        if (strcmp(named[i].option, name) == 0)
            return &named[i];
    return NULL;
}

/* What a value NAME=VALUE sets and, in *value, to what; NULL: there is no such name for the
 * command. */
static const struct ingle_option *part_of(const struct named *of, const char *where,
                                          const char **value)
{
    const char *equals = *value ? strchr(*value, '=') : NULL;
    const size_t n = equals ? (size_t)(equals - *value) : 0, k = strlen(of->begin);
    for (size_t i = 0; n && i < N_OPTIONS; i++) {
        const char *name = table[i].name;
        if (strcmp(table[i].group, of->group) != 0 || !applies(&table[i], where))
            continue;
        const bool begins = strncmp(name, of->begin, k) == 0;
        if ((strlen(name) == n && memcmp(name, *value, n) == 0) ||
            (begins && strlen(name + k) == n && memcmp(name + k, *value, n) == 0)) {
            *value = equals + 1;
            return &table[i];
        }
    }
    return NULL;
}

static ingle_status no_part(const struct named *of, const char *where, const char *value,
                            struct err *err)
{
    struct str names;
    const char *word[N_OPTIONS];
    size_t n = 0;
    str_init(&names);
    for (size_t i = 0; i < N_OPTIONS; i++) {
        const size_t k = strlen(of->begin);
        const char *name = table[i].name;
        if (strcmp(table[i].group, of->group) != 0 || !applies(&table[i], where))
            continue;
        word[n++] = strncmp(name, of->begin, k) == 0 ? name + k : name;
        str_addf(&names, "%s%s", names.n ? ", " : "", word[n - 1]);
    }
    const char *list = str_ok(&names) ? names.at : "";
    const size_t length = value ? strcspn(value, "=") : 0;
    if (length && value[length]) {
        char name[41];
        snprintf(name, sizeof name, "%.*s", length < sizeof name ? (int)length : 40, value);
        const char *near = near_word(word, n, name);
        err_set(err, INGLE_ARG, "option '--%s': there is no '%s'; %s%s", of->option, name,
                near ? "did you mean " : "there are: ", near ? near : list);
    } else {
        err_set(err, INGLE_ARG, "option '--%s' needs NAME=VALUE, not '%.60s': %s", of->option,
                value ? value : "", list);
    }
    str_release(&names);
    return INGLE_ARG;
}

static ingle_status check_gpu(const struct ingle_option *o, const char *name, const char *value,
                              struct err *err)
{
    const bool size = o->kind == INGLE_OPTION_SIZE;
    double bytes = 0;
    if (size && !parse_number(value, &bytes))
        return INGLE_OK; /* check() has said so */
    return engine_gpu_check(strcmp(name, "gpu") == 0 ? value : NULL,
                            strcmp(name, "gpu-layers") == 0 ? value : NULL,
                            strcmp(name, "draft-gpu-layers") == 0 ? value : NULL, (uint64_t)bytes,
                            err);
}

static ingle_status set(struct ingle_config *c, const char *where, const char *name,
                        const char *value, struct err *err)
{
    const struct ingle_option *o = find(name);
    if (!o || !applies(o, where))
        return unknown(where, name, err);
    const struct named *of = named_of(name);
    if (of && !(o = part_of(of, where, &value)))
        return no_part(of, where, value, err);
    name = o->name;
    ingle_status st = check(o, value, err);
    struct kv_way way;
    if (!st && (strcmp(name, "sparse") == 0 || strcmp(name, "against-sparse") == 0))
        st = kv_way_parse(KV_WAY_SPARSE,
                          *name == 's' ? "option '--sparse'" : "option '--against-sparse'", value,
                          NULL, &way, err);
    if (!st && strcmp(name, "kv-select") == 0)
        st = kv_way_parse(KV_WAY_SELECT, "option '--kv-select'", value, NULL, &way, err);
    if (!st && (strncmp(name, "gpu", 3) == 0 || strcmp(name, "draft-gpu-layers") == 0))
        st = check_gpu(o, name, value, err);
    int32_t image_tokens;
    if (!st && strcmp(name, "image-tokens") == 0 && !image_tokens_of(value, &image_tokens))
        st = err_set(err, INGLE_ARG,
                     "option '--image-tokens' is '%s', none of default, auto, 70, 140, 280, 560 "
                     "and 1120",
                     value);
    if (!st && strcmp(name, "logit-bias") == 0)
        st = add_bias(c, value, err);
    if (st)
        return st;
    const size_t i = (size_t)(o - table);
    char *copy = mem_strdup(o->kind != INGLE_OPTION_FLAG ? value : truth(value) ? "1" : "0");
    if (!copy ||
        !mem_grow(&c->value[i].text, &c->value[i].cap, c->value[i].n + 1,
                  sizeof *c->value[i].text) ||
        !mem_grow(&c->value[i].place, &c->value[i].cap_places, c->value[i].n + 1,
                  sizeof *c->value[i].place)) {
        mem_free(copy);
        return err_set(err, INGLE_NOMEM, "no memory for option '--%s'", name);
    }
    if (o->kind != INGLE_OPTION_LIST && c->value[i].n) {
        mem_free(c->value[i].text[0]);
        c->value[i].n = 0;
    }
    c->value[i].place[c->value[i].n] = ++c->n_set;
    c->value[i].text[c->value[i].n++] = copy;
    return INGLE_OK;
}

ingle_status ingle_config_set(struct ingle_config *c, const char *where, const char *name,
                              const char *value, struct ingle_error *error)
{
    struct err err;
    char lower[64];
    const struct ingle_option *o = find(name);
    /* "F16" is "f16": words of a list are in lower case. */
    if (o && o->kind == INGLE_OPTION_CHOICE && value && strlen(value) < sizeof lower &&
        !is_choice(o->choices, value)) {
        size_t n = 0;
        for (; value[n]; n++)
            lower[n] = (char)tolower((unsigned char)value[n]);
        lower[n] = 0;
        value = is_choice(o->choices, lower) ? lower : value;
    }
    return engine_say(error, set(c, where, name, value, &err), &err);
}

ingle_status ingle_config_replace(struct ingle_config *c, const char *name, size_t i,
                                  const char *value, struct ingle_error *error)
{
    struct err err;
    const struct ingle_option *o = find(name);
    const size_t at = o ? (size_t)(o - table) : 0;
    if (!o || (o->kind != INGLE_OPTION_TEXT && o->kind != INGLE_OPTION_LIST) || i >= c->value[at].n)
        return engine_say(
            error,
            err_set(&err, INGLE_NOTFOUND, "option '--%s' has no value %zu that is a text", name, i),
            &err);
    char *copy = mem_strdup(value);
    if (!copy)
        return engine_say(error, err_set(&err, INGLE_NOMEM, "no memory for option '--%s'", name),
                          &err);
    mem_free(c->value[at].text[i]);
    c->value[at].text[i] = copy;
    return INGLE_OK;
}

size_t ingle_config_place(const struct ingle_config *c, const char *name, size_t i)
{
    const size_t at = index_of(name);
    return i < c->value[at].n ? c->value[at].place[i] : 0;
}

const char *ingle_config_text(const struct ingle_config *c, const char *name, size_t i)
{
    const size_t at = index_of(name);
    if (i < c->value[at].n)
        return c->value[at].text[i];
    return i == 0 && c->value[at].n == 0 ? table[at].fallback : NULL;
}

double ingle_config_number(const struct ingle_config *c, const char *name)
{
    const char *text = ingle_config_text(c, name, 0);
    double v = 0;
    return text && value_of(&table[index_of(name)], text, &v) ? v : 0;
}

bool ingle_config_flag(const struct ingle_config *c, const char *name)
{
    const size_t at = index_of(name);
    return c->value[at].n > 0 && strcmp(c->value[at].text[0], "0") != 0;
}

bool ingle_config_is_set(const struct ingle_config *c, const char *name)
{
    return c->value[index_of(name)].n > 0;
}

static void set_member(const struct ingle_config *c, size_t i, struct ingle_engine_options *out)
{
    const struct ingle_option *o = &table[i];
    void *at = (char *)out + o->member.at;
    const double v = ingle_config_number(c, o->name);
    switch (o->member.type) {
    case INGLE_MEMBER_NONE:
        break;
    case INGLE_MEMBER_BOOL:
        *(bool *)at = ingle_config_flag(c, o->name);
        break;
    case INGLE_MEMBER_INT:
        *(int *)at = (int)v;
        break;
    case INGLE_MEMBER_INT64:
        *(int64_t *)at = (int64_t)v;
        break;
    case INGLE_MEMBER_UINT64:
        *(uint64_t *)at = (uint64_t)v;
        break;
    case INGLE_MEMBER_DOUBLE:
        *(double *)at = v;
        break;
    case INGLE_MEMBER_TEXT:
        *(const char **)at = ingle_config_text(c, o->name, 0);
        break;
    }
}

void ingle_config_engine(const struct ingle_config *c, struct ingle_engine_options *out)
{
    for (size_t i = 0; i < N_OPTIONS; i++)
        set_member(c, i, out);
    out->kv_events_array = strcmp(ingle_config_text(c, "kv-events-form", 0), "array") == 0;
    out->pack_cache = ingle_config_text(c, "pack-cache", 0);
    if (out->pack_cache && strcmp(out->pack_cache, "off") == 0)
        out->pack_cache = NULL;
    const size_t draft = index_of("draft");
    out->draft = (const char *const *)c->value[draft].text;
    out->n_draft = c->value[draft].n;
    (void)image_tokens_of(ingle_config_text(c, "image-tokens", 0), &out->image_tokens);
}

ingle_status ingle_config_check(const struct ingle_config *c, const struct ingle_model *m,
                                struct ingle_error *error)
{
    struct err err;
    struct ingle_model_info info;
    ingle_model_info(m, &info);
    for (size_t i = 0; i < c->n_bias && info.n_vocab; i++)
        if (c->bias[i].token >= info.n_vocab)
            return engine_say(error,
                              err_set(&err, INGLE_ARG,
                                      "option '--logit-bias' names token %d, outside the "
                                      "vocabulary of %lld",
                                      c->bias[i].token, (long long)info.n_vocab),
                              &err);
    return INGLE_OK;
}

void ingle_config_sampling(const struct ingle_config *c, struct ingle_sampling *out)
{
    struct {
        const char *name;
        float *to;
    } numbers[] = {
        {"temp", &out->temperature},
        {"top-p", &out->top_p},
        {"min-p", &out->min_p},
        {"typical-p", &out->typical_p},
        {"repeat-penalty", &out->repeat_penalty},
        {"presence-penalty", &out->presence_penalty},
        {"frequency-penalty", &out->frequency_penalty},
        {"dry-multiplier", &out->dry_multiplier},
        {"dry-base", &out->dry_base},
        {"xtc-probability", &out->xtc_probability},
        {"xtc-threshold", &out->xtc_threshold},
    };
    struct {
        const char *name;
        int32_t *to;
    } counts[] = {
        {"top-k", &out->top_k},
        {"repeat-last-n", &out->penalty_window},
        {"dry-allowed-length", &out->dry_allowed_length},
        {"dry-penalty-last-n", &out->dry_window},
    };
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (ingle_config_is_set(c, numbers[i].name))
            *numbers[i].to = (float)ingle_config_number(c, numbers[i].name);
    for (size_t i = 0; i < sizeof counts / sizeof *counts; i++)
        if (ingle_config_is_set(c, counts[i].name))
            *counts[i].to = (int32_t)ingle_config_number(c, counts[i].name);
    if (ingle_config_is_set(c, "repeat-last-n") && out->penalty_window == 0) {
        /* 0 tokens back: nothing is recent */
        out->repeat_penalty = 1;
        out->presence_penalty = out->frequency_penalty = 0;
    }
    if (ingle_config_is_set(c, "xtc-probability") && !ingle_config_is_set(c, "xtc-threshold"))
        out->xtc_threshold = (float)ingle_config_number(c, "xtc-threshold");
    if (ingle_config_is_set(c, "seed") && ingle_config_number(c, "seed") >= 0)
        out->seed = (uint64_t)ingle_config_number(c, "seed");
    if (c->n_bias) {
        out->bias = c->bias;
        out->n_bias = c->n_bias;
    }
}
