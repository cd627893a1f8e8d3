/* SPDX-License-Identifier: Apache-2.0 */
/*
 * ngram - an index of n-grams: for each position the one before it with the same last tokens.
 *
 * Positions of equal hash are linked, newest first, for a short and for a long n-gram.  Adding a
 * position is a push on its list and removing the last one a pop, so the index is cut as it grew.
 * A search visits a few places of a list and compares their tokens backwards.
 */
#include "session/ngram.h"

#include "base/mem.h"
#include "base/num.h"

#include <string.h>

enum {
    LONG = 8,              /* tokens of the long n-gram */
    DEFAULT_MATCH = 2,
    MATCH_FROM_MEMORY = 4, /* tokens that a match in earlier answers needs at least */
    VISITS = 64,           /* places of a list that a search looks at */
    PLACES = 16,           /* of those it keeps */
    LENGTHS = 8,           /* classes of match lengths */
    AGREEMENTS = 3,        /* one place, several that agree, several that do not */
    SOURCES = 2,           /* the session, the memory */
    MOST_USERS = 1 << 16,
    LEAST_CAP = 256,
    COMPARED = 16,         /* tokens that are compared in the time in which one is added */
};

static const float FADE = 0.98f, PRIOR_WEIGHT = 4;
static const float PRIOR[LENGTHS] = {0.35f, 0.5f, 0.6f, 0.7f, 0.8f, 0.87f, 0.92f, 0.95f};
static const int LENGTH_FROM[LENGTHS] = {0, 3, 4, 5, 7, 10, 16, 32};

enum { SHORT_LIST, LONG_LIST, LISTS };

struct index {
    int32_t *token;         /* [cap] */
    int32_t *before[LISTS]; /* [cap]: the next older position of the list, plus 1; 0: none */
    /* [1 << bits], the same: zeroed memory is an empty list, and untouched until it is used */
    int32_t *newest[LISTS];
    int64_t gram[LISTS];    /* tokens of the n-gram */
    int64_t n, cap;
    int bits;
};

struct rate {
    float tried, right;
};

struct ngram {
    struct index index;
    int64_t least;
    int64_t same; /* tokens known to be those of the text that is followed */
    struct rate rate[SOURCES][LENGTHS][AGREEMENTS];
    uint8_t class_of[NGRAM_MOST]; /* of the last draft: its tokens' rates */
    int source;
    int64_t n_drafted;
    struct ngram_other other;
};

struct user {
    uint64_t salt, used;
    struct index index;
};

struct ngram_memory {
    struct user *user; /* [n_users], n of them in use */
    int64_t n, n_users, n_tokens;
    uint64_t clock;
};

/* ---- the index ---- */

static uint32_t hash_of(const struct index *x, int list, const int32_t *last)
{
    uint64_t h = 0;
    for (int64_t i = 0; i < x->gram[list]; i++)
        h = (h ^ (uint32_t)last[-i]) * UINT64_C(0x9E3779B97F4A7C15) + (h >> 29);
    return (uint32_t)(h >> (64 - x->bits));
}

/* Whether an n-gram of tokens, of one text, ends at p. */
static bool has_gram(const struct index *x, int list, int64_t p)
{
    if (p + 1 < x->gram[list])
        return false;
    for (int64_t i = 0; i < x->gram[list]; i++)
        if (x->token[p - i] < 0)
            return false;
    return true;
}

static void link_position(struct index *x, int64_t p)
{
    for (int k = 0; k < LISTS; k++) {
        x->before[k][p] = 0;
        if (!has_gram(x, k, p))
            continue;
        int32_t *newest = &x->newest[k][hash_of(x, k, x->token + p)];
        x->before[k][p] = *newest;
        *newest = (int32_t)p + 1;
    }
}

/* The lists are empty. */
static void link_all(struct index *x)
{
    for (int64_t p = 0; p < x->n; p++)
        link_position(x, p);
}

static void cut(struct index *x, int64_t n)
{
    for (; x->n > n; x->n--)
        for (int k = 0; k < LISTS; k++)
            if (has_gram(x, k, x->n - 1))
                x->newest[k][hash_of(x, k, x->token + x->n - 1)] = x->before[k][x->n - 1];
}

static void release(struct index *x)
{
    mem_free(x->token);
    for (int k = 0; k < LISTS; k++) {
        mem_free(x->before[k]);
        mem_free(x->newest[k]);
    }
    *x = (struct index){.gram = {x->gram[0], x->gram[1]}};
}

static int64_t cap_for(int64_t n, int *bits)
{
    const int64_t cap = num_max(n, LEAST_CAP);
    for (*bits = 8; (INT64_C(1) << *bits) < cap;)
        ++*bits;
    return cap;
}

uint64_t session_ngram_bytes(int64_t n)
{
    int bits;
    const uint64_t cap = (uint64_t)cap_for(num_min(num_max(n, 0), INT32_MAX), &bits);
    return sizeof(struct ngram) + cap * (1 + LISTS) * sizeof(int32_t) +
           (LISTS * sizeof(int32_t) << bits);
}

/* Room for n tokens: the arrays at least double, so that what they are filled with again is paid
 * for. */
static ingle_status reserve(struct index *x, int64_t n, struct err *err)
{
    if (n <= x->cap)
        return INGLE_OK;
    if (n > INT32_MAX / 2)
        return err_set(err, INGLE_LIMIT, "an index of %lld tokens is beyond %d", (long long)n,
                       INT32_MAX / 2);
    struct index y = *x;
    y.cap = cap_for(num_max(n, 2 * x->cap), &y.bits);
    bool fits = (y.token = mem_calloc((size_t)y.cap, sizeof *y.token)) != NULL;
    for (int k = 0; k < LISTS; k++) {
        y.before[k] = mem_calloc((size_t)y.cap, sizeof *y.before[k]);
        y.newest[k] = mem_calloc((size_t)1 << y.bits, sizeof *y.newest[k]);
        fits = fits && y.before[k] && y.newest[k];
    }
    if (!fits) {
        release(&y);
        return err_set(err, INGLE_NOMEM, "no memory for an index of %lld tokens", (long long)n);
    }
    if (x->n)
        memcpy(y.token, x->token, (size_t)x->n * sizeof *y.token);
    release(x);
    *x = y;
    link_all(x);
    return INGLE_OK;
}

static void append(struct index *x, const int32_t *tokens, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        x->token[x->n] = tokens[i];
        link_position(x, x->n++);
    }
}

/* ---- a session ---- */

ingle_status session_ngram_create(struct ngram **out, const struct ngram_options *o,
                                  struct err *err)
{
    const int64_t match = o->least_match ? o->least_match : DEFAULT_MATCH;
    if (match < 2 || match > NGRAM_MOST_MATCH)
        return err_set(err, INGLE_ARG, "option 'least match' is %lld, outside 2 to %d",
                       (long long)match, NGRAM_MOST_MATCH);
    if (o->least < 0 || o->least > NGRAM_MOST)
        return err_set(err, INGLE_ARG, "option 'least' is %lld, outside 0 to %d",
                       (long long)o->least, NGRAM_MOST);
    struct ngram *g = mem_zalloc(sizeof *g);
    if (!g)
        return err_set(err, INGLE_NOMEM, "no memory for an index of n-grams");
    g->index.gram[SHORT_LIST] = match;
    g->index.gram[LONG_LIST] = num_max(match, LONG);
    g->least = num_max(o->least, 1);
    *out = g;
    return INGLE_OK;
}

void session_ngram_free(struct ngram *g)
{
    if (!g)
        return;
    release(&g->index);
    mem_free(g);
}

ingle_status session_ngram_reserve(struct ngram *g, int64_t n, struct err *err)
{
    return reserve(&g->index, n, err);
}

ingle_status session_ngram_append(struct ngram *g, const int32_t *tokens, int64_t n,
                                  struct err *err)
{
    if (n <= 0)
        return INGLE_OK;
    if (n > INT32_MAX)
        return err_set(err, INGLE_LIMIT, "an index of %lld tokens is beyond %d", (long long)n,
                       INT32_MAX / 2);
    const ingle_status st = reserve(&g->index, g->index.n + n, err);
    if (!st)
        append(&g->index, tokens, n);
    return st;
}

void session_ngram_truncate(struct ngram *g, int64_t n)
{
    cut(&g->index, num_max(n, 0));
    g->same = num_min(g->same, g->index.n);
}

void session_ngram_turn(struct ngram *g)
{
    g->same = 0;
}

bool session_ngram_follow(struct ngram *g, const int32_t *tokens, int64_t n, int64_t *work)
{
    struct index *x = &g->index;
    const int64_t from = num_min(g->same, n), both = num_min(n, x->n);
    const int64_t end = num_min(both, from + num_min(*work, both) * COMPARED);
    if (n > x->cap)
        return false;
    g->same = from;
    while (g->same < end && x->token[g->same] == tokens[g->same])
        g->same++;
    *work -= (g->same - from) / COMPARED;
    if (g->same == end && end < both)
        return false;
    const int64_t n_cut = num_min(x->n - g->same, *work);
    cut(x, x->n - n_cut);
    *work -= n_cut;
    if (x->n > g->same)
        return false;
    const int64_t n_more = num_min(n - x->n, *work);
    append(x, tokens + x->n, n_more);
    *work -= n_more;
    g->same = x->n;
    return x->n == n;
}

int64_t session_ngram_length(const struct ngram *g)
{
    return g->index.n;
}

/* ---- earlier answers ---- */

ingle_status session_ngram_memory_create(struct ngram_memory **out, int64_t n_users,
                                         int64_t n_tokens, struct err *err)
{
    if (n_users < 1 || n_users > MOST_USERS)
        return err_set(err, INGLE_ARG, "a memory of answers for %lld users is outside 1 to %d",
                       (long long)n_users, MOST_USERS);
    if (n_tokens < 2 || n_tokens > INT32_MAX / 4)
        return err_set(err, INGLE_ARG, "a memory of answers of %lld tokens is outside 2 to %d",
                       (long long)n_tokens, INT32_MAX / 4);
    struct ngram_memory *m = mem_zalloc(sizeof *m);
    if (m)
        m->user = mem_calloc((size_t)n_users, sizeof *m->user);
    if (!m || !m->user) {
        mem_free(m);
        return err_set(err, INGLE_NOMEM, "no memory for earlier answers");
    }
    m->n_users = n_users;
    m->n_tokens = n_tokens;
    *out = m;
    return INGLE_OK;
}

void session_ngram_forget(struct ngram_memory *m)
{
    for (int64_t i = 0; i < m->n; i++)
        release(&m->user[i].index);
    m->n = 0;
}

void session_ngram_memory_free(struct ngram_memory *m)
{
    if (!m)
        return;
    session_ngram_forget(m);
    mem_free(m->user);
    mem_free(m);
}

static struct user *find_user(struct ngram_memory *m, uint64_t salt)
{
    for (int64_t i = 0; i < m->n; i++)
        if (m->user[i].salt == salt) {
            m->user[i].used = ++m->clock;
            return &m->user[i];
        }
    return NULL;
}

/* The user's, or a new place: that of the user who was not there for the longest time, if there is
 * no other. */
static struct user *take_user(struct ngram_memory *m, uint64_t salt)
{
    struct user *u = find_user(m, salt);
    if (u)
        return u;
    if (m->n < m->n_users) {
        u = &m->user[m->n++];
    } else {
        u = m->user;
        for (int64_t i = 1; i < m->n; i++)
            if (m->user[i].used < u->used)
                u = &m->user[i];
        release(&u->index);
    }
    *u = (struct user){.salt = salt, .used = ++m->clock};
    u->index.gram[SHORT_LIST] = MATCH_FROM_MEMORY;
    u->index.gram[LONG_LIST] = LONG;
    return u;
}

/* Only the last n tokens stay, from the beginning of an answer on if one begins there. */
static void keep_last(struct index *x, int64_t n)
{
    int64_t from = x->n - n;
    for (int64_t p = from; p < x->n; p++)
        if (x->token[p] < 0) {
            from = p + 1;
            break;
        }
    for (int k = 0; k < LISTS; k++)
        memset(x->newest[k], 0, sizeof **x->newest << x->bits);
    memmove(x->token, x->token + from, (size_t)(x->n - from) * sizeof *x->token);
    x->n -= from;
    link_all(x);
}

ingle_status session_ngram_remember(struct ngram_memory *m, uint64_t salt, const int32_t *tokens,
                                    int64_t n, struct err *err)
{
    static const int32_t border = -1;
    if (n <= MATCH_FROM_MEMORY) /* nothing could be drafted from it */
        return INGLE_OK;
    struct index *x = &take_user(m, salt)->index;
    const int64_t take = num_min(n, m->n_tokens - 1);
    if (x->n > m->n_tokens - 1 - take) /* more than that goes, so that this is rare */
        keep_last(x, num_min(x->n, num_min(m->n_tokens / 2, m->n_tokens - 1 - take)));
    const ingle_status st = reserve(x, x->n + take + 1, err);
    if (!st) {
        append(x, tokens + (n - take), take);
        append(x, &border, 1);
    }
    return st;
}

/* ---- drafts ---- */

struct place {
    int64_t next;  /* position of the token that followed */
    int64_t match; /* tokens before it that agree with the end of the text */
};

struct search {
    const struct index *x;
    struct place place[PLACES]; /* newest first */
    int n;
    int64_t longest;
};

/* Tokens that agree, going back from x[p] and from *last, of which there are `have`. */
static int64_t agree(const struct index *x, int64_t p, const int32_t *last, int64_t have)
{
    const int64_t most = num_min(num_min(p + 1, have), NGRAM_MOST_MATCH);
    int64_t k = 0;
    while (k < most && x->token[p - k] == last[-k] && last[-k] >= 0)
        k++;
    return k;
}

/* Looks at the places of a list from p on.  Keeps those with the longest matches. */
static void visit(struct search *s, int list, int64_t p, const int32_t *last, int64_t have)
{
    const struct index *x = s->x;
    for (int i = 0; i < VISITS && p >= 0; i++, p = x->before[list][p] - 1) {
        const int64_t match = agree(x, p, last, have);
        if (match < x->gram[list])
            continue;
        if (match > s->longest) { /* those with half of it no longer count */
            int kept = 0;
            for (int k = 0; k < s->n; k++)
                if (2 * s->place[k].match > match)
                    s->place[kept++] = s->place[k];
            s->n = kept;
            s->longest = match;
        }
        if (s->n < PLACES && 2 * match > s->longest)
            s->place[s->n++] = (struct place){p + 1, match};
    }
}

static void find(struct search *s, const struct index *x, const int32_t *last, int64_t have,
                 bool own)
{
    *s = (struct search){.x = x};
    for (int k = LISTS - 1; k >= 0 && !s->n; k--) {
        if (have < x->gram[k] || !x->cap)
            continue;
        const int64_t from = own ? x->before[k][x->n - 1] : x->newest[k][hash_of(x, k, last)];
        visit(s, k, from - 1, last, have);
    }
}

static int length_class(int64_t match)
{
    int k = LENGTHS - 1;
    while (match < LENGTH_FROM[k])
        k--;
    return k;
}

static float rate_of(const struct rate *r, int length)
{
    return (r->right + PRIOR_WEIGHT * PRIOR[length]) / (r->tried + PRIOR_WEIGHT);
}

/* What follows place q as the j-th token of the draft; -1: nothing.  After the end of the text
 * comes the draft itself: text that repeats itself goes on. */
static int32_t next_of(const struct search *s, const struct place *q, int64_t j,
                       const int32_t *draft, bool own)
{
    const int64_t p = q->next + j;
    return p < s->x->n ? s->x->token[p] : own ? draft[p - s->x->n] : -1;
}

/* The token that most places go on with, weighed by their matches; of equals the newest.  The
 * others go. */
static int32_t vote(struct search *s, int64_t j, const int32_t *draft, bool own, float *share)
{
    int32_t next[PLACES], best = -1;
    float most = 0, all = 0;
    for (int k = 0; k < s->n; k++) {
        next[k] = next_of(s, &s->place[k], j, draft, own);
        all += (float)(s->place[k].match * s->place[k].match);
    }
    for (int k = 0; k < s->n; k++) {
        float sum = 0;
        if (next[k] < 0 || next[k] == best)
            continue;
        for (int i = k; i < s->n; i++)
            if (next[i] == next[k])
                sum += (float)(s->place[i].match * s->place[i].match);
        if (sum > most) {
            most = sum;
            best = next[k];
        }
    }
    int kept = 0;
    for (int k = 0; k < s->n; k++)
        if (next[k] == best)
            s->place[kept++] = s->place[k];
    s->n = best < 0 ? 0 : kept;
    *share = all > 0 ? most / all : 0;
    return best;
}

/* Places that do not go on with t. */
static void leave(struct search *s, int64_t j, const int32_t *draft, bool own, int32_t t)
{
    int kept = 0;
    for (int k = 0; k < s->n; k++)
        if (next_of(s, &s->place[k], j, draft, own) != t)
            s->place[kept++] = s->place[k];
    s->n = kept;
}

/* The places that the draft did not follow where it may part. */
struct parting {
    struct search s;
    int64_t at;
    int32_t first;
    float share; /* of these places that go on with `first` */
    float worth; /* how likely it is that the draft parts there with that token, about */
};

/* Before token j of the draft was voted for the places were those of s; t was chosen.  likely: that
 * the draft gets there and goes on otherwise. */
static void note_parting(struct parting *p, const struct search *s, int64_t j, const int32_t *draft,
                         bool own, int32_t t, float likely)
{
    struct parting q = {.s = *s, .at = j};
    if (likely <= p->worth)
        return;
    leave(&q.s, j, draft, own, t);
    q.first = vote(&q.s, j, draft, own, &q.share);
    q.worth = likely * q.share;
    if (q.first >= 0 && q.worth > p->worth)
        *p = q;
}

static void follow_other(struct ngram *g, struct parting *p, const int32_t *draft, int64_t most,
                         bool own)
{
    struct ngram_other *o = &g->other;
    int32_t path[NGRAM_MOST + NGRAM_OTHER];
    if (!(p->worth > 0))
        return;
    memcpy(path, draft, (size_t)p->at * sizeof *path);
    o->at = p->at;
    path[p->at] = o->token[0] = p->first;
    o->confidence[0] = p->share;
    for (o->n = 1; o->n < num_min(NGRAM_OTHER, most - p->at); o->n++) {
        const int64_t j = p->at + o->n;
        const int length = length_class(p->s.longest + j), before = p->s.n;
        const int32_t t = vote(&p->s, j, path, own, &o->confidence[o->n]);
        if (t < 0)
            break;
        path[j] = o->token[o->n] = t;
        o->confidence[o->n] *= rate_of(&g->rate[own ? 0 : 1][length][before == 1        ? 0
                                                                     : p->s.n == before ? 1
                                                                                        : 2],
                                       length);
    }
}

const struct ngram_other *session_ngram_other(const struct ngram *g)
{
    return &g->other;
}

int64_t session_ngram_propose(struct ngram *g, struct ngram_memory *m, uint64_t salt, int64_t width,
                              int32_t *token, float *confidence)
{
    const struct index *x = &g->index;
    struct search s, other;
    struct parting parting = {.worth = 0};
    float reach = 1;
    g->n_drafted = 0;
    g->other.n = 0;
    if (x->n < 2 || width < g->least)
        return 0;
    const int32_t *last = x->token + (x->n - 1);
    find(&s, x, last, x->n, true);
    const struct user *u = m ? find_user(m, salt) : NULL;
    bool own = true;
    if (u) {
        find(&other, &u->index, last, x->n, false);
        if (other.longest > s.longest) {
            s = other;
            own = false;
        }
    }
    int64_t n = 0;
    for (width = num_min(width, NGRAM_MOST); n < width && s.n; n++) {
        const int before = s.n, length = length_class(s.longest + n);
        const struct search all = s;
        float share;
        const int32_t t = vote(&s, n, token, own, &share);
        if (t < 0)
            break;
        if (s.n < before)
            note_parting(&parting, &all, n, token, own, t, reach * (1 - share));
        const int agreement = before == 1 ? 0 : s.n == before ? 1 : 2;
        g->class_of[n] = (uint8_t)(length * AGREEMENTS + agreement);
        token[n] = t;
        confidence[n] = rate_of(&g->rate[own ? 0 : 1][length][agreement], length) *
                        (agreement == 2 ? share : 1);
        reach *= confidence[n];
    }
    if (n < g->least)
        return 0;
    follow_other(g, &parting, token, width, own);
    g->source = own ? 0 : 1;
    return g->n_drafted = n;
}

void session_ngram_learn(struct ngram *g, int64_t n_tried, int64_t n_right)
{
    n_tried = num_min(n_tried, g->n_drafted);
    /* after a wrong token nothing is known */
    for (int64_t j = 0; j < n_tried && j <= n_right; j++) {
        struct rate *r =
            &g->rate[g->source][g->class_of[j] / AGREEMENTS][g->class_of[j] % AGREEMENTS];
        r->tried = r->tried * FADE + 1;
        r->right = r->right * FADE + (j < n_right ? 1 : 0);
    }
    g->n_drafted = 0;
}
