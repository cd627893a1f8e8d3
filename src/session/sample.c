/* SPDX-License-Identifier: Apache-2.0 */
#include "session/sample.h"

#include "base/mem.h"
#include "base/num.h"
#include "session/draw.h"

#include <float.h>
#include <math.h>
#include <string.h>

struct sampler {
    struct sample_options o;
    int64_t n_vocab, n_history;
    struct sample_bias *bias;   /* [o.n_bias] */
    int32_t *suppress;          /* [o.n_suppress] */
    int32_t *end, *banned;      /* [o.n_end], [o.n_banned] */
    uint64_t *only;             /* bits [n_vocab], or NULL: all */
    uint8_t *breaker;           /* [n_vocab], DRY only */
    int32_t *match;             /* [n_history], DRY only */
    float *logit;               /* [n_vocab] */
    int32_t *count;             /* [n_vocab], zero between uses */
    struct sample_choice *kept; /* [n_vocab]; p is a weight until the end */
    struct sample_choice *spare;
    float *most;             /* [(n_vocab + 63) / 64]: the largest logit of each block */
    int64_t n_kept;
    uint64_t drawn;          /* the number of the last draw, */
    int32_t last;            /* its token; -1: there was none */
    bool has_kept, has_p;    /* what it was drawn from is in kept, with probabilities */
    float sharp;             /* what logits are multiplied by; 1 */
    const uint64_t *allowed; /* bits [n_vocab], or NULL: all */
    const int32_t *forbidden; /* [n_forbidden], borrowed */
    size_t n_forbidden;
    const int32_t *never; /* [n_never], borrowed */
    size_t n_never;
    const struct device_columns *part; /* [n_part], borrowed: whom draws look at; &whole: all */
    int64_t n_part;
    struct device_columns whole;
};

/* ---- life ---- */

void session_sample_defaults(struct sample_options *o)
{
    *o = (struct sample_options){.top_p = 1, .typical_p = 1, .repeat_penalty = 1};
}

static ingle_status check_range(const char *name, float v, float min, float max, struct err *err)
{
    if (v >= min && v <= max)
        return INGLE_OK;
    return err_set(err, INGLE_ARG, "option '%s' is %g, outside %g to %g", name, (double)v,
                   (double)min, (double)max);
}

static ingle_status check_token(const char *name, int32_t id, int64_t n_vocab, struct err *err)
{
    if (id >= 0 && id < n_vocab)
        return INGLE_OK;
    return err_set(err, INGLE_ARG, "%s names token %d, outside the vocabulary of %lld", name, id,
                   (long long)n_vocab);
}

static ingle_status check_options(const struct sample_options *o, int64_t n_vocab, struct err *err)
{
    const struct {
        const char *name;
        float v, min, max;
    } range[] = {
        {"temperature", o->temperature, 0, FLT_MAX},
        {"top-k", (float)o->top_k, 0, 2147483648.0f},
        {"top-p", o->top_p, 0, 1},
        {"min-p", o->min_p, 0, 1},
        {"typical-p", o->typical_p, 0, 1},
        {"repeat-penalty", o->repeat_penalty, 1e-3f, 1e3f},
        {"presence-penalty", o->presence_penalty, -1e3f, 1e3f},
        {"frequency-penalty", o->frequency_penalty, -1e3f, 1e3f},
        {"penalty-window", (float)o->penalty_window, -1, 2147483648.0f},
        {"dry-multiplier", o->dry_multiplier, 0, 1e6f},
        {"dry-base", o->dry_base > 0 ? o->dry_base : (o->dry_base == 0 ? 1.75f : -1), 1, 1e3f},
        {"dry-allowed-length", (float)o->dry_allowed_length, 0, 2147483648.0f},
        {"dry-window", (float)o->dry_window, -1, 2147483648.0f},
        {"xtc-probability", o->xtc_probability, 0, 1},
        {"xtc-threshold", o->xtc_threshold, 0, 1},
    };
    ingle_status st;
    for (size_t i = 0; i < sizeof range / sizeof *range; i++)
        if ((st = check_range(range[i].name, range[i].v, range[i].min, range[i].max, err)))
            return st;
    for (size_t i = 0; i < o->n_bias; i++) {
        if ((st = check_token("logit bias", o->bias[i].token, n_vocab, err)))
            return st;
        const float b = o->bias[i].bias;
        if (isnan(b) || b > FLT_MAX)
            return err_set(err, INGLE_ARG, "logit bias of token %d is %g", o->bias[i].token,
                           (double)b);
    }
    for (size_t i = 0; i < o->n_suppress; i++)
        if ((st = check_token("the list of suppressed tokens", o->suppress[i], n_vocab, err)))
            return st;
    for (size_t i = 0; i < o->n_dry_breaker; i++)
        if ((st = check_token("the list of DRY breakers", o->dry_breaker[i], n_vocab, err)))
            return st;
    for (size_t i = 0; i < o->n_end; i++)
        if ((st = check_token("the list of ends", o->end[i], n_vocab, err)))
            return st;
    for (size_t i = 0; i < o->n_banned; i++)
        if (o->banned[i] != -1 &&
            (st = check_token("a banned sequence", o->banned[i], n_vocab, err)))
            return st;
    if (o->n_banned && o->banned[o->n_banned - 1] != -1)
        return err_set(err, INGLE_ARG, "the last banned sequence does not end with -1");
    for (size_t i = 0; i < o->n_only; i++)
        if ((st = check_token("the list of allowed tokens", o->only[i], n_vocab, err)))
            return st;
    return INGLE_OK;
}

static bool copy_list(void *out, const void *from, size_t n, size_t size)
{
    void **to = out;
    if (!n)
        return true;
    *to = mem_calloc(n, size);
    if (!*to)
        return false;
    memcpy(*to, from, n * size);
    return true;
}

uint64_t session_sample_bytes(int64_t n_vocab)
{
    const struct sampler *s = NULL;
    return (uint64_t)n_vocab *
               (sizeof *s->logit + sizeof *s->count + sizeof *s->kept + sizeof *s->spare) +
           (uint64_t)num_div_up(n_vocab, SESSION_DRAW_BLOCK) * sizeof *s->most;
}

static bool take_memory(struct sampler *s, const struct sample_options *o)
{
    const size_t v = (size_t)s->n_vocab;
    s->logit = mem_calloc(v, sizeof *s->logit);
    s->count = mem_calloc(v, sizeof *s->count);
    s->kept = mem_calloc(v, sizeof *s->kept);
    s->spare = mem_calloc(v, sizeof *s->spare);
    s->most = mem_calloc((v + SESSION_DRAW_BLOCK - 1) / SESSION_DRAW_BLOCK, sizeof *s->most);
    if (!s->logit || !s->count || !s->kept || !s->spare || !s->most)
        return false;
    if (!copy_list(&s->bias, o->bias, o->n_bias, sizeof *o->bias) ||
        !copy_list(&s->suppress, o->suppress, o->n_suppress, sizeof *o->suppress) ||
        !copy_list(&s->end, o->end, o->n_end, sizeof *o->end) ||
        !copy_list(&s->banned, o->banned, o->n_banned, sizeof *o->banned))
        return false;
    if (o->n_only) {
        s->only = mem_calloc((v + 63) / 64, sizeof *s->only);
        for (size_t i = 0; s->only && i < o->n_only; i++)
            s->only[o->only[i] / 64] |= UINT64_C(1) << (o->only[i] % 64);
        if (!s->only)
            return false;
    }
    if (o->dry_multiplier > 0) {
        s->breaker = mem_calloc(v, 1);
        s->match = mem_calloc((size_t)s->n_history + 1, sizeof *s->match);
        if (!s->breaker || !s->match)
            return false;
        for (size_t i = 0; i < o->n_dry_breaker; i++)
            s->breaker[o->dry_breaker[i]] = 1;
    }
    return true;
}

ingle_status session_sample_create(struct sampler **out, const struct sample_options *o,
                                   int64_t n_vocab, int64_t n_history, struct err *err)
{
    if (n_vocab < 1 || n_vocab > INT32_MAX)
        return err_set(err, INGLE_ARG, "a vocabulary of %lld tokens is outside 1 to %d",
                       (long long)n_vocab, INT32_MAX);
    if (n_history < 0 || n_history > INT32_MAX)
        return err_set(err, INGLE_ARG, "a history of %lld tokens is outside 0 to %d",
                       (long long)n_history, INT32_MAX);
    const ingle_status st = check_options(o, n_vocab, err);
    if (st)
        return st;
    struct sampler *s = mem_zalloc(sizeof *s);
    if (!s)
        return err_set(err, INGLE_NOMEM, "no memory for a sampler");
    s->n_vocab = n_vocab;
    s->whole = (struct device_columns){0, n_vocab};
    session_sample_part(s, NULL, 0);
    s->last = -1;
    s->n_history = n_history;
    s->sharp = 1;
    if (!take_memory(s, o)) {
        session_sample_free(s);
        return err_set(err, INGLE_NOMEM, "no memory for a sampler of %lld tokens",
                       (long long)n_vocab);
    }
    s->o = *o;
    s->o.bias = s->bias;
    s->o.suppress = s->suppress;
    s->o.end = s->end;
    s->o.banned = s->banned;
    s->o.dry_breaker = s->o.only = NULL;
    s->o.penalty_window = o->penalty_window == 0 ? 64 : o->penalty_window;
    s->o.dry_base = o->dry_base > 0 ? o->dry_base : 1.75f;
    s->o.dry_allowed_length = o->dry_allowed_length ? o->dry_allowed_length : 2;
    *out = s;
    return INGLE_OK;
}

void session_sample_free(struct sampler *s)
{
    if (!s)
        return;
    mem_free(s->bias);
    mem_free(s->suppress);
    mem_free(s->end);
    mem_free(s->banned);
    mem_free(s->only);
    mem_free(s->breaker);
    mem_free(s->match);
    mem_free(s->logit);
    mem_free(s->count);
    mem_free(s->kept);
    mem_free(s->spare);
    mem_free(s->most);
    mem_free(s);
}

/* ---- logits ---- */

/* Copies one part; whether any is NaN or +inf. */
static bool take_part(struct sampler *s, const float *logits, struct device_columns part)
{
    enum { LANES = 16 };
    const float sharp = s->sharp;
    uint32_t wrong[LANES] = {0}, bad = 0;
    int64_t from = part.first;
    const int64_t end = part.first + part.n;
    for (; from + LANES <= end; from += LANES)
        for (int l = 0; l < LANES; l++) {
            wrong[l] |= !(logits[from + l] <= FLT_MAX);
            s->logit[from + l] = logits[from + l] * sharp + 0.0f;
        }
    for (; from < end; from++) {
        bad |= !(logits[from] <= FLT_MAX);
        s->logit[from] = logits[from] * sharp + 0.0f;
    }
    for (int l = 0; l < LANES; l++)
        bad |= wrong[l];
    return bad;
}

/* Copies and refuses NaN and +inf; -0 becomes +0, so that equal logits are equal keys. */
static ingle_status take_logits(struct sampler *s, const float *logits, struct err *err)
{
    for (int64_t p = 0; p < s->n_part; p++) {
        if (!take_part(s, logits, s->part[p]))
            continue;
        for (int64_t t = s->part[p].first; t < s->part[p].first + s->part[p].n; t++)
            if (!(logits[t] <= FLT_MAX))
                return err_set(err, INGLE_NUMERIC, "the logit of token %lld is %s", (long long)t,
                               isnan(logits[t]) ? "not a number" : "infinite");
    }
    return INGLE_OK;
}

void session_sample_part(struct sampler *s, const struct device_columns *part, int64_t n)
{
    s->part = n ? part : &s->whole;
    s->n_part = n ? n : 1;
    for (int64_t b = 0; n && b < num_div_up(s->n_vocab, SESSION_DRAW_BLOCK); b++)
        s->most[b] = -INFINITY;
}

void session_sample_sharpen(struct sampler *s, float by)
{
    s->sharp = by > 0 && by <= SAMPLE_MOST_SHARP ? by : 1;
}

void session_sample_allow(struct sampler *s, const uint64_t *allowed)
{
    s->allowed = allowed;
}

void session_sample_forbid(struct sampler *s, const int32_t *id, size_t n)
{
    s->forbidden = id;
    s->n_forbidden = n;
}

void session_sample_never(struct sampler *s, const int32_t *id, size_t n)
{
    s->never = id;
    s->n_never = n;
}

/* Those whose bit is not set; NULL: none. */
static void forbid_others(struct sampler *s, const uint64_t *allowed)
{
    for (int64_t p = 0; allowed && p < s->n_part; p++) {
        const int64_t end = s->part[p].first + s->part[p].n;
        for (int64_t t = s->part[p].first; t < end; t += 64) {
            const uint64_t word = allowed[t / 64];
            for (int64_t i = 0; word != UINT64_MAX && i < num_min(64, end - t); i++)
                if (!(word >> i & 1))
                    s->logit[t + i] = -INFINITY;
        }
    }
}

static void forbid_early_ends(struct sampler *s, int64_t n_history)
{
    for (size_t j = 0; n_history - s->o.n_prompt < s->o.min_tokens && j < s->o.n_end; j++)
        s->logit[s->end[j]] = -INFINITY;
}

static void forbid_banned(struct sampler *s, const int32_t *history, int64_t n_history)
{
    const int64_t n_answer = num_max(0, n_history - s->o.n_prompt);
    for (size_t from = 0, to; from < s->o.n_banned; from = to + 1) {
        to = from;
        while (s->banned[to] != -1)
            to++;
        const size_t before = to > from ? to - from - 1 : 0;
        if (to == from || (uint64_t)n_answer < before)
            continue;
        if (!before || memcmp(history + (n_history - (int64_t)before), s->banned + from,
                              before * sizeof *history) == 0)
            s->logit[s->banned[to - 1]] = -INFINITY;
    }
}

static float finite_or_forbidden(float l)
{
    return l > FLT_MAX ? FLT_MAX : l + 0.0f;
}

/* The last n tokens of the history, n bounded by the window (-1: all) and by n_history. */
static int64_t window_of(const struct sampler *s, int32_t window, int64_t n_history)
{
    int64_t n = num_min(n_history, s->n_history);
    return window < 0 ? n : num_min(n, window);
}

static void add_penalties(struct sampler *s, const int32_t *w, int64_t n)
{
    const struct sample_options *o = &s->o;
    if (o->repeat_penalty == 1 && o->presence_penalty == 0 && o->frequency_penalty == 0)
        return;
    for (int64_t j = 0; j < n; j++)
        s->count[w[j]]++;
    for (int64_t j = 0; j < n; j++) {
        const int32_t t = w[j], c = s->count[t];
        if (!c)
            continue;
        s->count[t] = 0;
        float l = s->logit[t];
        l = l > 0 ? l / o->repeat_penalty : l * o->repeat_penalty;
        l -= (float)c * o->frequency_penalty + o->presence_penalty;
        s->logit[t] = finite_or_forbidden(l);
    }
}

/* match[k] = length of the longest common suffix of w and w without its last k tokens
 * (the Z function of w read backwards). */
static void match_suffixes(int32_t *match, const int32_t *w, int64_t n)
{
    int64_t left = 0, right = 0;
    for (int64_t k = 1; k < n; k++) {
        int64_t z = k < right ? num_min(right - k, match[k - left]) : 0;
        while (k + z < n && w[n - 1 - z] == w[n - 1 - k - z])
            z++;
        match[k] = (int32_t)z;
        if (k + z > right) {
            left = k;
            right = k + z;
        }
    }
}

static float dry_amount(const struct sample_options *o, int64_t length)
{
    double amount = (double)o->dry_multiplier;
    for (int64_t e = o->dry_allowed_length; e < length && amount < 1e30; e++) {
        if (o->dry_base == 1)
            break;
        amount *= (double)o->dry_base;
    }
    return (float)(amount < 1e30 ? amount : 1e30);
}

static void add_dry(struct sampler *s, const int32_t *w, int64_t n)
{
    const struct sample_options *o = &s->o;
    int64_t limit = 0; /* tokens after the last breaker */
    while (limit < n && !s->breaker[w[n - 1 - limit]])
        limit++;
    if (limit < o->dry_allowed_length || n < 2)
        return;
    match_suffixes(s->match, w, n);
    for (int64_t k = 1; k < n; k++) {
        const int32_t length = (int32_t)num_min(s->match[k], limit), next = w[n - k];
        if (length >= o->dry_allowed_length && length > s->count[next])
            s->count[next] = length;
    }
    for (int64_t k = 1; k < n; k++) {
        const int32_t next = w[n - k], length = s->count[next];
        s->count[next] = 0;
        if (length && !s->breaker[next])
            s->logit[next] = s->logit[next] - dry_amount(o, length) + 0.0f;
    }
}

static ingle_status shape_logits(struct sampler *s, const float *logits, const int32_t *history,
                                 int64_t n_history, struct err *err)
{
    const struct sample_options *o = &s->o;
    ingle_status st = take_logits(s, logits, err);
    for (int64_t j = num_max(0, n_history - s->n_history); !st && j < n_history; j++)
        st = check_token("the history", history[j], s->n_vocab, err);
    if (st)
        return st;
    forbid_others(s, s->allowed);
    forbid_others(s, s->only);
    for (size_t j = 0; j < o->n_bias; j++) {
        float *l = &s->logit[s->bias[j].token];
        *l = finite_or_forbidden(*l + s->bias[j].bias);
    }
    for (size_t j = 0; j < o->n_suppress; j++)
        s->logit[s->suppress[j]] = -INFINITY;
    for (size_t j = 0; j < s->n_forbidden; j++)
        s->logit[s->forbidden[j]] = -INFINITY;
    for (size_t j = 0; j < s->n_never; j++)
        if (s->never[j] < s->n_vocab)
            s->logit[s->never[j]] = -INFINITY;
    forbid_early_ends(s, n_history);
    forbid_banned(s, history, n_history);
    if (n_history <= 0)
        return INGLE_OK;
    int64_t n = window_of(s, o->penalty_window, n_history);
    add_penalties(s, history + (n_history - n), n);
    if (o->dry_multiplier > 0) {
        n = window_of(s, o->dry_window ? o->dry_window : -1, n_history);
        add_dry(s, history + (n_history - n), n);
    }
    return INGLE_OK;
}

/* ---- choosing ---- */

static ingle_status none_left(const struct sampler *s, struct err *err)
{
    return s->allowed || s->only
               ? err_set(err, INGLE_LIMIT,
                         "no token can be sampled: all allowed tokens are forbidden")
               : err_set(err, INGLE_NUMERIC, "no token can be sampled: every logit is -infinity");
}

/* True when a comes after b in the order: descending logit, ascending id. */
static bool ranks_after(const struct sample_choice *a, const struct sample_choice *b)
{
    return a->logit < b->logit || (a->logit == b->logit && a->id > b->id);
}

/* Restores the heap (the hindmost on top) below place i. */
static void sift(struct sample_choice *h, int64_t n, int64_t i)
{
    const struct sample_choice x = h[i];
    for (int64_t child; (child = 2 * i + 1) < n; i = child) {
        if (child + 1 < n && ranks_after(&h[child + 1], &h[child]))
            child++;
        if (!ranks_after(&h[child], &x))
            break;
        h[i] = h[child];
    }
    h[i] = x;
}

/* h, the n best of the k that are wanted, with those of a part; returns n then. */
static int64_t heap_of(const struct sampler *s, struct device_columns part, struct sample_choice *h,
                       int64_t n, int64_t k)
{
    for (int64_t t = part.first; t < part.first + part.n; t++) {
        const float l = s->logit[t];
        if (l == -INFINITY || (n == k && l <= h[0].logit))
            continue;
        const struct sample_choice c = {(int32_t)t, l, 0};
        if (n < k) {
            h[n++] = c;
            for (int64_t i = n / 2; n == k && i-- > 0;)
                sift(h, n, i);
        } else {
            h[0] = c;
            sift(h, n, 0);
        }
    }
    return n;
}

/* The k best of the logits in order, by a heap of k: for k far below the vocabulary. */
static void select_sparse(struct sampler *s, int64_t k)
{
    struct sample_choice *h = s->kept;
    int64_t n = 0;
    for (int64_t p = 0; p < s->n_part; p++)
        n = heap_of(s, s->part[p], h, n, k);
    if (n < k)
        for (int64_t i = n / 2; i-- > 0;)
            sift(h, n, i);
    for (int64_t end = n - 1; end > 0; end--) { /* the hindmost goes to the end */
        const struct sample_choice c = h[0];
        h[0] = h[end];
        h[end] = c;
        sift(h, end, 0);
    }
    s->n_kept = n;
}

/* The largest logit of each block of a part to most, where -inf stands for the other blocks. */
static void largest_of_blocks(const struct sampler *s)
{
    for (int64_t p = 0; p < s->n_part; p++)
        session_draw_blocks(s->logit + s->part[p].first, s->part[p].n,
                            s->most + s->part[p].first / SESSION_DRAW_BLOCK);
}

/* The first of the largest. */
static void select_one(struct sampler *s)
{
    int64_t best = 0, t;
    largest_of_blocks(s);
    for (int64_t b = 1; b < num_div_up(s->n_vocab, SESSION_DRAW_BLOCK); b++)
        if (s->most[b] > s->most[best])
            best = b;
    s->n_kept = s->most[best] > -INFINITY;
    for (t = best * SESSION_DRAW_BLOCK; s->n_kept && s->logit[t] != s->most[best]; t++)
        ;
    if (s->n_kept)
        s->kept[0] = (struct sample_choice){(int32_t)t, s->logit[t], 0};
}

/* Ascending order of floats as ascending unsigned numbers. */
static uint32_t key_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof u);
    return u & 0x80000000u ? ~u : u | 0x80000000u;
}

/* Stable sort of kept by descending logit: four passes over the key's bytes. */
static void sort_kept(struct sampler *s)
{
    int64_t at[4][256] = {{0}};
    for (int64_t j = 0; j < s->n_kept; j++) {
        const uint32_t key = ~key_of(s->kept[j].logit);
        for (int b = 0; b < 4; b++)
            at[b][key >> 8 * b & 255]++;
    }
    for (int b = 0; b < 4; b++) {
        int64_t sum = 0;
        for (int v = 0; v < 256; v++) {
            const int64_t n = at[b][v];
            at[b][v] = sum;
            sum += n;
        }
        for (int64_t j = 0; j < s->n_kept; j++)
            s->spare[at[b][~key_of(s->kept[j].logit) >> 8 * b & 255]++] = s->kept[j];
        struct sample_choice *swap = s->kept;
        s->kept = s->spare;
        s->spare = swap;
    }
}

/* Keeps the logits from `least` on. */
static void keep_from(struct sampler *s, double least)
{
    s->n_kept = 0;
    for (int64_t p = 0; p < s->n_part; p++)
        for (int64_t t = s->part[p].first; t < s->part[p].first + s->part[p].n; t++)
            if (s->logit[t] > -INFINITY && (double)s->logit[t] >= least)
                s->kept[s->n_kept++] = (struct sample_choice){(int32_t)t, s->logit[t], 0};
}

static void select_all(struct sampler *s, int64_t k)
{
    keep_from(s, -(double)FLT_MAX);
    sort_kept(s);
    s->n_kept = num_min(s->n_kept, k);
}

static double sum_of(const struct sampler *s)
{
    double sum = 0;
    for (int64_t j = 0; j < s->n_kept; j++)
        sum += s->kept[j].p;
    return sum;
}

/* p becomes exp((l - l_max) / temperature), not normalised. */
static void weigh(struct sampler *s, double temperature)
{
    const double max = (double)s->kept[0].logit;
    for (int64_t j = 0; j < s->n_kept; j++)
        s->kept[j].p = session_exp(((double)s->kept[j].logit - max) / temperature);
}

/* Each kept token's distance from the entropy goes to spare as a sort key; the nearest are
 * taken until their sum exceeds typical_p; the rest keep their old order. */
static void keep_typical(struct sampler *s)
{
    const double sum = sum_of(s), log_sum = session_log(sum), max = (double)s->kept[0].logit;
    double entropy = 0;
    for (int64_t j = 0; j < s->n_kept; j++) {
        const double log_p = (double)s->kept[j].logit - max - log_sum;
        if (s->kept[j].p > 0)
            entropy -= s->kept[j].p / sum * log_p;
    }
    /* The keys take the place of the logits while sorting; -distance, as the sort is
     * descending. */
    for (int64_t j = 0; j < s->n_kept; j++) {
        struct sample_choice *c = &s->kept[j];
        s->logit[c->id] = c->logit;
        c->logit = -(float)fabs(-((double)c->logit - max - log_sum) - entropy);
    }
    sort_kept(s);
    double reached = 0;
    for (int64_t j = 0; j < s->n_kept; j++) {
        reached += s->kept[j].p / sum;
        if (reached > (double)s->o.typical_p) {
            s->n_kept = j + 1;
            break;
        }
    }
    for (int64_t j = 0; j < s->n_kept; j++)
        s->kept[j].logit = s->logit[s->kept[j].id];
    sort_kept(s);
}

/* sum: of p over all that could be kept.  False: kept does not reach it. */
static bool keep_top_p(struct sampler *s, double sum)
{
    double reached = 0;
    for (int64_t j = 0; j < s->n_kept; j++) {
        reached += s->kept[j].p;
        if (reached / sum >= (double)s->o.top_p) {
            s->n_kept = j + 1;
            return true;
        }
    }
    return false;
}

static void keep_min_p(struct sampler *s)
{
    const double least = (double)s->o.min_p * s->kept[0].p;
    int64_t n = 1;
    while (n < s->n_kept && s->kept[n].p >= least)
        n++;
    s->n_kept = n;
}

static void exclude_top_choices(struct sampler *s, uint64_t i)
{
    const struct sample_options *o = &s->o;
    if (o->xtc_probability <= 0 || o->xtc_threshold > 0.5f || s->n_kept < 2)
        return;
    if (session_draw_coin(o->seed, i) >= (double)o->xtc_probability)
        return;
    const double least = (double)o->xtc_threshold * sum_of(s);
    int64_t n = 0;
    while (n < s->n_kept && s->kept[n].p >= least)
        n++;
    if (n < 2)
        return;
    memmove(s->kept, s->kept + (n - 1), (size_t)(s->n_kept - (n - 1)) * sizeof *s->kept);
    s->n_kept -= n - 1;
}

static float largest(const float *logits, int64_t n)
{
    float most = -INFINITY;
    for (int64_t t = 0; t < n; t++)
        most = logits[t] > most ? logits[t] : most;
    return most;
}

/* Keeps those whose logits are within `range` of the largest, in order and weighed. */
static void select_near(struct sampler *s, double range)
{
    float max = -INFINITY;
    for (int64_t p = 0; p < s->n_part; p++)
        max = fmaxf(max, largest(s->logit + s->part[p].first, s->part[p].n));
    keep_from(s, (double)max - range);
    sort_kept(s);
    if (s->n_kept)
        weigh(s, 1);
}

/* top-p of all tokens: the likely ones are sorted, all of them only if those do not reach it. */
static void select_top_p(struct sampler *s)
{
    static const double LIKELY = 12;
    select_near(s, LIKELY);
    if (!s->n_kept)
        return;
    const double max = (double)s->kept[0].logit;
    double sum = 0;
    for (int64_t p = 0; p < s->n_part; p++)
        sum += session_exp_sum(s->logit + s->part[p].first, s->part[p].n, max);
    if (keep_top_p(s, sum))
        return;
    select_near(s, (double)INFINITY);
    (void)keep_top_p(s, sum); /* rounding: all of them */
}

/* Whether the draw is from all tokens that are not forbidden. */
static bool takes_all(const struct sample_options *o)
{
    return o->temperature > 0 && o->top_k <= 0 && o->typical_p >= 1 && o->top_p >= 1 &&
           o->min_p <= 0 && (o->xtc_probability <= 0 || o->xtc_threshold > 0.5f);
}

/* Leaves in kept what is drawn from. */
static ingle_status choose(struct sampler *s, uint64_t i, struct err *err)
{
    const struct sample_options *o = &s->o;
    const bool greedy = o->temperature == 0;
    const bool xtc = o->xtc_probability > 0;
    const bool filters = !greedy || xtc || o->typical_p < 1;
    int64_t k = o->top_k > 0 ? o->top_k : s->n_vocab;
    if (!filters)
        k = 1;
    /* the next filter is top-p or min-p */
    const bool all = filters && k >= s->n_vocab && o->typical_p >= 1;
    if (k == 1)
        select_one(s);
    else if (k <= 1024 && k < s->n_vocab)
        select_sparse(s, k);
    else if (all && o->top_p < 1)
        select_top_p(s);
    else if (all && o->min_p > 0)
        select_near(s, 1e-3 - session_log(fmax((double)o->min_p, DBL_MIN)));
    else
        select_all(s, k);
    if (!s->n_kept)
        return none_left(s, err);
    if (filters && !takes_all(o)) {
        weigh(s, 1);
        if (o->typical_p < 1)
            keep_typical(s);
        if (o->top_p < 1 && !all)
            (void)keep_top_p(s, sum_of(s));
        if (o->min_p > 0)
            keep_min_p(s);
        exclude_top_choices(s, i);
    }
    if (greedy)
        s->n_kept = 1;
    s->has_kept = true;
    s->has_p = false;
    return INGLE_OK;
}

/* p becomes the probability of being drawn. */
static void normalise(struct sampler *s)
{
    weigh(s, s->o.temperature == 0 ? 1 : (double)s->o.temperature);
    const double sum = sum_of(s);
    for (int64_t j = 0; j < s->n_kept; j++)
        s->kept[j].p /= sum;
    s->has_p = true;
}

ingle_status session_sample_distribution(struct sampler *s, const float *logits, uint64_t i,
                                         const int32_t *history, int64_t n_history,
                                         const struct sample_choice **out, int64_t *n,
                                         struct err *err)
{
    ingle_status st = shape_logits(s, logits, history, n_history, err);
    if (!st)
        st = choose(s, i, err);
    if (st)
        return st;
    normalise(s);
    s->drawn = i;
    *out = s->kept;
    *n = s->n_kept;
    return INGLE_OK;
}

/* So many are kept in order; more than that as a heap with the worst on top. */
enum { TOP_IN_ORDER = 64 };

/* Of two tokens with the same logit the later one is worse. */
static bool is_worse(const float *logits, int32_t a, int32_t b)
{
    return logits[a] < logits[b] || (logits[a] == logits[b] && a > b);
}

/* Puts the token where it belongs in the heap of n whose place 0 is free. */
static void sink_top(const float *logits, struct sample_top *top, int n, int32_t id)
{
    int at = 0;
    for (int child = 1; child < n; child = 2 * at + 1) {
        child += child + 1 < n && is_worse(logits, top[child + 1].id, top[child].id);
        if (!is_worse(logits, top[child].id, id))
            break;
        top[at] = top[child];
        at = child;
    }
    top[at].id = id;
}

static int heap_top(const float *logits, int64_t from, int64_t count, struct sample_top *top, int n,
                    int n_top)
{
    for (int64_t t = from; t < from + count; t++) {
        if (n == n_top) {
            if (is_worse(logits, top[0].id, (int32_t)t))
                sink_top(logits, top, n, (int32_t)t);
            continue;
        }
        int at = n++;
        for (; at > 0 && is_worse(logits, (int32_t)t, top[(at - 1) / 2].id); at = (at - 1) / 2)
            top[at] = top[(at - 1) / 2];
        top[at].id = (int32_t)t;
    }
    return n;
}

/* The heap in order, the best first. */
static void sort_top(const float *logits, struct sample_top *top, int n)
{
    while (n > 1) {
        const int32_t worst = top[0].id, last = top[--n].id;
        sink_top(logits, top, n, last);
        top[n].id = worst;
    }
}

/* Of logits [from, from + count) those that are among the n_top largest of all before; returns how
 * many top has. */
static int insert_top(const float *logits, int64_t from, int64_t count, struct sample_top *top,
                      int n, int n_top)
{
    for (int64_t t = from; t < from + count; t++) {
        if (n == n_top && logits[t] <= logits[top[n - 1].id])
            continue;
        n += n < n_top;
        int j = n - 1;
        for (; j > 0 && logits[top[j - 1].id] < logits[t]; j--)
            top[j] = top[j - 1];
        top[j].id = (int32_t)t;
    }
    return n;
}

void session_sample_logprobs(const float *logits, int64_t n_vocab, int32_t token, float *logprob,
                             struct sample_top *top, int n_top)
{
    float max = -INFINITY;
    int n = 0;
    n_top = top ? n_top : 0;
    const bool heap = n_top > TOP_IN_ORDER;
    for (int64_t t = 0; t < n_vocab; t += SESSION_DRAW_BLOCK) {
        const int64_t count = num_min(SESSION_DRAW_BLOCK, n_vocab - t);
        const float most = largest(logits + t, count);
        max = most > max ? most : max;
        if (n_top && (n < n_top || most > logits[top[heap ? 0 : n - 1].id]))
            n = (heap ? heap_top : insert_top)(logits, t, count, top, n, n_top);
    }
    if (heap)
        sort_top(logits, top, n);
    const double log_sum = (double)max + session_log(session_exp_sum(logits, n_vocab, (double)max));
    if (logprob)
        *logprob = (float)((double)logits[token] - log_sum);
    for (int j = 0; j < n; j++)
        top[j].logprob = (float)((double)logits[top[j].id] - log_sum);
}

int session_sample_last(struct sampler *s, int32_t token, float *logprob, struct sample_top *top,
                        int n_top)
{
    int n = 0;
    *logprob = 0;
    if (!s->has_kept && choose(s, s->drawn, NULL))
        return 0;
    if (!s->has_p)
        normalise(s);
    for (int64_t j = 0; j < s->n_kept; j++) {
        const struct sample_choice *c = &s->kept[j];
        const bool listed = n < n_top && c->p >= (double)FLT_MIN;
        if (!listed && c->id != token)
            continue;
        const float log_p = (float)session_log(c->p > 0 ? c->p : DBL_MIN);
        if (listed)
            top[n++] = (struct sample_top){c->id, log_p};
        if (c->id == token)
            *logprob = log_p;
    }
    return n;
}

/* The winner among the kept ones but `not`, which are in order of their logits: those far after
 * cannot win.  -1: there is none. */
static int32_t draw_of_kept(const struct sampler *s, uint64_t i, int32_t not)
{
    const double temperature = (double)s->o.temperature, top = (double)s->kept[0].logit;
    int32_t best = -1;
    double most = (double)-INFINITY;
    if (s->n_kept == 1 && s->kept[0].id != not)
        return s->kept[0].id;
    for (int64_t j = 0; j < s->n_kept && s->n_kept > 1; j++) {
        const double l = ((double)s->kept[j].logit - top) / temperature;
        if (best >= 0 && l + SESSION_DRAW_MOST < most)
            break;
        if (s->kept[j].id == not)
            continue;
        const double score = l + session_draw_number(s->o.seed, i, s->kept[j].id);
        if (best < 0 || score > most || (score == most && s->kept[j].id < best)) {
            most = score;
            best = s->kept[j].id;
        }
    }
    return best;
}

ingle_status session_sample_draw(struct sampler *s, const float *logits, uint64_t i,
                                 const int32_t *history, int64_t n_history,
                                 struct sample_token *out, struct err *err)
{
    ingle_status st = shape_logits(s, logits, history, n_history, err);
    int32_t id = -1;
    s->last = -1;
    if (st)
        return st;
    s->drawn = i;
    s->has_kept = false;
    if (takes_all(&s->o)) {
        largest_of_blocks(s);
        id =
            session_draw_all(s->logit, s->n_vocab, s->most, (double)s->o.temperature, s->o.seed, i);
        if (id < 0)
            return none_left(s, err);
    } else {
        st = choose(s, i, err);
        if (st)
            return st;
        id = s->o.temperature > 0 ? draw_of_kept(s, i, -1) : s->kept[0].id;
    }
    out->id = s->last = id;
    out->logprob = 0;
    if (s->o.logprobs)
        session_sample_logprobs(logits, s->n_vocab, out->id, &out->logprob, NULL, 0);
    return INGLE_OK;
}

/* The largest logit but that of `not`. */
static int32_t best_but(const struct sampler *s, int32_t not)
{
    int32_t best = -1;
    for (int64_t p = 0; p < s->n_part; p++)
        for (int64_t t = s->part[p].first; t < s->part[p].first + s->part[p].n; t++)
            if (s->logit[t] > (best < 0 ? -INFINITY : s->logit[best]) && t != not)
                best = (int32_t)t;
    return best;
}

int32_t session_sample_second(const struct sampler *s)
{
    const int32_t first = s->last;
    if (first < 0)
        return -1;
    if (s->o.temperature == 0)
        return best_but(s, first);
    if (!takes_all(&s->o))
        return draw_of_kept(s, s->drawn, first);
    const float logit = s->logit[first];
    s->logit[first] = -INFINITY;
    largest_of_blocks(s);
    const int32_t second = session_draw_all(s->logit, s->n_vocab, s->most, (double)s->o.temperature,
                                            s->o.seed, s->drawn);
    s->logit[first] = logit;
    return second;
}

bool session_sample_is_free(const struct sampler *s)
{
    return takes_all(&s->o) ||
           (s->o.temperature == 0 && s->o.xtc_probability <= 0 && s->o.typical_p >= 1);
}
