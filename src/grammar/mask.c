/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grammar_mask - the tokens that may follow a state.
 *
 * A state's items share an outermost part of their frames.  Without it the state is found
 * again in many places (every string of a JSON text), so what follows it is kept: the tokens,
 * and the places of the trie where the shared part would go on.
 */
#include "grammar/match.h"

#include "base/mem.h"
#include <string.h>

static void allow_range(uint64_t *bit, const struct grammar_trie *t, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        const uint32_t id = (uint32_t)t->id[i];
        bit[id >> 6] |= (uint64_t)1 << (id & 63);
    }
}

static void add_pop(struct grammar_matcher *m, struct match_mask *k, uint32_t node)
{
    if (!mem_grow(&k->pop, &k->cap_pops, k->n_pops + 1, sizeof *k->pop))
        grammar_match_fail(m, INGLE_NOMEM, "no memory for a grammar's mask");
    else
        k->pop[k->n_pops++] = node;
}

/* Allows the tokens of nodes [at, end), siblings and what is below them, that fit after state.
 * pops (may be NULL): where the state's frames end.  Goes on at *depth if that is not 0; where it
 * was left is returned, with *depth. */
static uint32_t walk(struct grammar_matcher *m, const struct grammar_trie *t, uint32_t at,
                     uint32_t end, uint32_t state, uint64_t *bit, struct match_mask *pops,
                     uint32_t *at_depth)
{
    enum { CHECK_NODES = 1 << 12 };
    uint32_t depth = *at_depth;
    uint64_t n_nodes = 0;
    m->stack_end[0] = end;
    m->stack_state[0] = state;
    while (at < end) {
        if (++n_nodes % CHECK_NODES == 0) { /* which cost little beside states */
            grammar_match_count(m, CHECK_NODES / 8);
            if (m->status)
                break;
        }
        while (at >= m->stack_end[depth])
            depth--;
        const struct grammar_trie_node *n = &t->node[at];
        const uint32_t s = m->stack_state[depth];
        const uint32_t groups = grammar_match_groups(m, s);
        if (!m->status && !(n->groups & ~groups) && !(pops && m->states[s].may_end)) {
            allow_range(bit, t, n->token, t->node[at + n->skip].token);
            at += n->skip;
            continue;
        }
        const uint32_t to = grammar_match_step(m, s, n->byte);
        if (m->status)
            break;
        if (to == MATCH_DEAD) {
            at += n->skip;
            continue;
        }
        allow_range(bit, t, n->token, t->node[at + 1].token);
        if (pops && m->states[to].may_end && n->skip > 1)
            add_pop(m, pops, at);
        if (!m->states[to].n || n->skip == 1) {
            at += n->skip;
            continue;
        }
        depth++;
        m->stack_end[depth] = at + n->skip;
        m->stack_state[depth] = to;
        at++;
    }
    if (!m->status)
        m->n_steps += n_nodes % CHECK_NODES / 8;
    *at_depth = depth;
    return at;
}

/* The kept mask of a state and trie, or the one that was used longest ago, emptied. */
static struct match_mask *find_mask(struct grammar_matcher *m, uint32_t state, uint32_t trie,
                                    bool *known)
{
    struct match_mask *oldest = &m->mask[0];
    *known = true;
    m->clock++;
    for (size_t i = 0; i < MATCH_N_MASKS; i++) {
        struct match_mask *k = &m->mask[i];
        if (k->state == state && k->trie == trie) {
            k->used = m->clock;
            return k;
        }
        if (k->used < oldest->used)
            oldest = k;
    }
    *known = false;
    if (!oldest->bit)
        oldest->bit = mem_calloc(m->v->n_words, sizeof *oldest->bit);
    if (!oldest->bit) {
        grammar_match_fail(m, INGLE_NOMEM, "no memory for a grammar's mask");
        return NULL;
    }
    memset(oldest->bit, 0, m->v->n_words * sizeof *oldest->bit);
    oldest->n_pops = 0;
    oldest->state = MATCH_DEAD; /* until it is complete */
    oldest->walk = 0;
    oldest->used = m->clock;
    return oldest;
}

static void or_words(uint64_t *to, const uint64_t *from, size_t n)
{
    for (size_t i = 0; i < n; i++)
        to[i] |= from[i];
}

/* All of a mask that is empty, or the rest of one that was left.  A call that has no time left
 * leaves it. */
static void make_mask(struct grammar_matcher *m, struct match_mask *mask,
                      const struct grammar_trie *t, uint32_t local, uint32_t k, bool pops)
{
    uint32_t at = 0, depth = 0;
    if (mask->walk && mask->walk == m->n_walks) {
        at = mask->at;
        depth = mask->depth;
    } else {
        mask->walk = ++m->n_walks;
        mask->n_pops = 0;
    }
    at = walk(m, t, at, t->n_nodes, local, mask->bit, pops ? mask : NULL, &depth);
    mask->at = at;
    mask->depth = depth;
    if (!m->status)
        mask->walk = 0;
    mask->state = !m->status || m->status == INGLE_CANCEL ? local : MATCH_DEAD;
    mask->trie = k;
}

/* Adds to bit what follows state in one trie. */
static void add_trie(struct grammar_matcher *m, uint32_t state, uint32_t k, uint64_t *bit)
{
    const struct grammar_trie *t = &m->v->trie[k];
    const uint32_t base = grammar_match_common(m, state);
    const uint32_t local = grammar_match_plain(m, state, base, t->max_bytes);
    bool known;
    if (m->status || !t->n_nodes)
        return;
    struct match_mask *mask = find_mask(m, local, k, &known);
    if (!mask)
        return;
    if (!known || mask->walk)
        make_mask(m, mask, t, local, k, base != 0);
    if (m->status)
        return;
    or_words(bit, mask->bit, m->v->n_words);
    if (!base || !mask->n_pops)
        return;
    const uint32_t after = grammar_match_after(m, base);
    for (size_t i = 0; i < mask->n_pops && !m->status; i++) {
        const uint32_t at = mask->pop[i];
        uint32_t depth = 0;
        m->n_walks++;
        (void)walk(m, t, at + 1, at + t->node[at].skip, after, bit, NULL, &depth);
    }
}

static void add_tokens(struct grammar_matcher *m, uint32_t state, uint64_t *bit)
{
    const struct match_state *s = &m->states[state];
    for (uint32_t i = 0; i < s->n; i++) {
        const struct grammar_node *n = &m->g->node[m->item[s->first + i].node];
        if (n->kind == GRAMMAR_TOKEN && n->b < (uint64_t)m->v->n_vocab)
            bit[n->b >> 6] |= (uint64_t)1 << (n->b & 63);
    }
}

static void allow_ends(const struct grammar_matcher *m, uint64_t *bit)
{
    for (size_t i = 0; i < m->v->n_end; i++)
        bit[m->v->end[i] >> 6] |= (uint64_t)1 << (m->v->end[i] & 63);
}

static bool is_empty(const uint64_t *bit, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (bit[i])
            return false;
    return true;
}

/* Texts that differ in counters far from their limits have the same mask. */
static uint64_t *whole_mask(struct grammar_matcher *m)
{
    uint32_t longest = 0;
    bool known;
    for (uint32_t k = 0; k < GRAMMAR_N_TRIES; k++)
        longest = m->v->trie[k].max_bytes > longest ? m->v->trie[k].max_bytes : longest;
    const uint32_t plain = grammar_match_plain(m, m->state, 0, longest);
    if (m->status)
        return NULL;
    struct match_mask *mask = find_mask(m, plain, GRAMMAR_N_TRIES, &known);
    if (!mask || known)
        return mask ? mask->bit : NULL;
    uint64_t *bit = m->out; /* the mask may be taken by a part of itself */
    memset(bit, 0, m->v->n_words * sizeof *bit);
    for (uint32_t k = 0; k < GRAMMAR_N_TRIES && !m->status; k++)
        add_trie(m, m->state, k, bit);
    if (m->status)
        return NULL;
    add_tokens(m, m->state, bit);
    mask = find_mask(m, plain, GRAMMAR_N_TRIES, &known);
    if (!mask)
        return NULL;
    memcpy(mask->bit, bit, m->v->n_words * sizeof *bit);
    mask->state = plain;
    mask->trie = GRAMMAR_N_TRIES;
    return bit;
}

static void enter(struct grammar_matcher *m, struct err *err)
{
    m->status = INGLE_OK;
    m->err = err;
    m->spent += m->n_steps;
    m->n_steps = m->check_at = 0;
}

/* A limit was hit: true if that is of what the tables had from earlier places, which they forget
 * now. */
static bool starts_anew(struct grammar_matcher *m)
{
    if (m->status != INGLE_LIMIT || m->fresh)
        return false;
    m->status = INGLE_OK;
    m->n_steps = m->spent = m->check_at = 0;
    grammar_match_trim(m);
    return m->status == INGLE_OK;
}

/* The answer has come to another place.  Large tables are forgotten here, so that a mask which was
 * made can be used. */
static void arrive(struct grammar_matcher *m)
{
    m->spent = m->n_steps = m->check_at = 0;
    m->fresh = false;
    if (grammar_match_large(m))
        grammar_match_trim(m);
}

void grammar_matcher_bound(struct grammar_matcher *m, const struct grammar_pause *p)
{
    m->pause = p;
}

ingle_status grammar_matcher_reset(struct grammar_matcher *m, struct err *err)
{
    enter(m, err);
    m->ended = m->stuck = m->too_deep = false;
    arrive(m);
    if (!m->status)
        m->state = grammar_match_start(m);
    return m->status;
}

ingle_status grammar_matcher_mask(struct grammar_matcher *m, const uint64_t **allowed,
                                  struct err *err)
{
    enter(m, err);
    const uint64_t *bit = NULL;
    if (!m->ended) {
        bit = whole_mask(m);
        if (starts_anew(m))
            bit = whole_mask(m);
    }
    if (m->status)
        return m->status;
    if (!bit)
        memset(m->out, 0, m->v->n_words * sizeof *m->out);
    else if (bit != m->out)
        memcpy(m->out, bit, m->v->n_words * sizeof *m->out);
    const bool none = is_empty(m->out, m->v->n_words);
    if (none && !m->ended && !m->states[m->state].may_end && m->too_deep)
        return err_set(err, INGLE_LIMIT, "the answer's rules nest deeper than the limit of %d",
                       GRAMMAR_MAX_DEPTH);
    m->stuck = none;
    if (none || m->states[m->state].may_end)
        allow_ends(m, m->out);
    *allowed = m->out;
    return INGLE_OK;
}

static bool is_end(const struct grammar_matcher *m, int32_t token)
{
    for (size_t i = 0; i < m->v->n_end; i++)
        if (m->v->end[i] == token)
            return true;
    return false;
}

/* The state after a token that comes at `from`, MATCH_DEAD if it does not fit.  A special token
 * has no bytes. */
static uint32_t after_from(struct grammar_matcher *m, uint32_t from, int32_t token)
{
    const struct grammar_vocab *v = m->v;
    if (token < 0 || token >= v->n_vocab || m->ended)
        return MATCH_DEAD;
    uint32_t s = grammar_match_token(m, from, token);
    if (s != MATCH_DEAD || v->offset[token] == v->offset[token + 1])
        return s;
    s = from;
    for (uint32_t i = v->offset[token]; i < v->offset[token + 1] && s != MATCH_DEAD; i++)
        s = grammar_match_step(m, s, (uint8_t)v->bytes[i]);
    return s;
}

static uint32_t state_after(struct grammar_matcher *m, int32_t token)
{
    return after_from(m, m->state, token);
}

static bool may_take_end(const struct grammar_matcher *m, int32_t token)
{
    return (m->ended || m->stuck || m->states[m->state].may_end) && is_end(m, token);
}

ingle_status grammar_matcher_allows(struct grammar_matcher *m, int32_t token, bool *allows,
                                 struct err *err)
{
    enter(m, err);
    bool fits = may_take_end(m, token) || state_after(m, token) != MATCH_DEAD;
    if (starts_anew(m))
        fits = state_after(m, token) != MATCH_DEAD;
    if (!m->status)
        *allows = fits;
    return m->status;
}

ingle_status grammar_matcher_fits(struct grammar_matcher *m, const int32_t *token, int64_t n,
                                  int64_t *fit, struct err *err)
{
    enter(m, err);
    uint32_t s = m->state;
    int64_t i = 0;
    for (; i < n && !m->status; i++) {
        const uint32_t next = after_from(m, s, token[i]);
        if (next == MATCH_DEAD)
            break;
        s = next;
    }
    /* An end of the answer may be the last of them. */
    *fit = i + (i < n && !m->status && m->states[s].may_end && is_end(m, token[i]));
    return m->status;
}

/* The one byte or token that can come at a state: 0 to 255, or 256 + the token; -1: there are
 * several, or it may end. */
static int64_t only_way(struct grammar_matcher *m, uint32_t state)
{
    const struct match_state s = m->states[state];
    struct grammar_set all = {{0}};
    int64_t token = -1, n_bytes = 0, byte = 0;
    grammar_match_count(m, s.n);
    if (s.may_end || m->status)
        return -1;
    for (uint32_t i = 0; i < s.n; i++) {
        const struct grammar_node *n = &m->g->node[m->item[s.first + i].node];
        if (n->kind == GRAMMAR_TOKEN &&
            (n->b >= (uint64_t)m->v->n_vocab || (token >= 0 && token != n->b)))
            return -1;
        if (n->kind == GRAMMAR_TOKEN)
            token = n->b;
        for (int w = 0; w < 4 && n->kind == GRAMMAR_BYTES; w++)
            all.bit[w] |= m->g->set[n->b].bit[w];
    }
    for (int w = 0; w < 4; w++) {
        n_bytes += __builtin_popcountll(all.bit[w]);
        byte = all.bit[w] ? 64 * w + __builtin_ctzll(all.bit[w]) : byte;
    }
    if (n_bytes + (token >= 0) != 1)
        return -1;
    return n_bytes ? byte : 256 + token;
}

ingle_status grammar_matcher_forced(struct grammar_matcher *m, struct grammar_forced *piece,
                                    size_t *n, char *bytes, size_t cap, bool *open, struct err *err)
{
    const size_t most = *n;
    size_t k = 0, used = 0;
    uint32_t s = m->state;
    bool room = true;
    enter(m, err);
    *n = 0;
    *open = false;
    while (!m->ended && !m->status) {
        const int64_t way = only_way(m, s);
        const bool goes_on = way < 256 && k && piece[k - 1].token < 0;
        room = way < 0 || ((goes_on || k < most) && (way >= 256 || used < cap));
        if (way < 0 || !room)
            break;
        const uint32_t to = way < 256 ? grammar_match_step(m, s, (uint8_t)way)
                                      : grammar_match_token(m, s, (int32_t)(way - 256));
        if (m->status || to == MATCH_DEAD)
            break;
        if (!goes_on)
            piece[k++] = (struct grammar_forced){.token = way < 256 ? -1 : (int32_t)(way - 256)};
        piece[k - 1].n_bytes += way < 256;
        if (way < 256)
            bytes[used++] = (char)way;
        s = to;
    }
    if (m->status)
        return m->status;
    *n = k;
    *open = !room || m->states[s].n > 0;
    return INGLE_OK;
}

ingle_status grammar_matcher_accept(struct grammar_matcher *m, int32_t token, struct err *err)
{
    enter(m, err);
    uint32_t s = state_after(m, token);
    if (starts_anew(m))
        s = state_after(m, token);
    if (m->status)
        return m->status;
    if (s == MATCH_DEAD && !may_take_end(m, token))
        return err_set(err, INGLE_ARG, "token %d does not fit the grammar here", token);
    m->ended = s == MATCH_DEAD;
    m->stuck = false;
    if (!m->ended)
        m->state = s;
    arrive(m);
    return m->status;
}

ingle_status grammar_matcher_accept_bytes(struct grammar_matcher *m, const char *bytes, size_t n,
                                       size_t *n_taken, struct err *err)
{
    size_t i = 0;
    enter(m, err);
    for (; i < n && !m->status && !m->ended; i++) {
        uint32_t s = grammar_match_step(m, m->state, (uint8_t)bytes[i]);
        if (starts_anew(m))
            s = grammar_match_step(m, m->state, (uint8_t)bytes[i]);
        if (s == MATCH_DEAD)
            break;
        m->state = s;
        m->stuck = false;
        arrive(m);
    }
    if (!m->status)
        *n_taken = i;
    return m->status;
}

bool grammar_matcher_may_end(const struct grammar_matcher *m)
{
    return m->ended || m->states[m->state].may_end;
}
