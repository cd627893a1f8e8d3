/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grammar_multiple - multiples of a decimal between bounds, digit by digit.
 *
 * Numbers are counted in units of the step's last decimal: N = number * 10^n_frac, of which the
 * step is a whole number.  A state is how many digits of N are left and the remainder of those so
 * far, modulo the step.
 */
#include "grammar/form.h"

#include "base/mem.h"
#include <string.h>

enum { MOST_DIGITS = 18, MOST_STATES = 1 << 14, FIRST_SLOTS = 1 << 6, NOWHERE = -1 };
/* All digits so far are the lower bound's, the upper bound's; a point was the last; there was none
 * yet. */
enum { AT_LOW = 1, AT_HIGH = 2, AT_POINT = 4, AT_FIRST = 8 };

struct state {
    uint64_t remainder; /* the digits so far, with zeros for those that are left, modulo the step */
    int32_t node;
    uint8_t n_left, at;
    bool used;
};

struct multiples {
    struct grammar_builder *b;
    struct state *slot;
    size_t n_states, n_used, n_slots;
    uint64_t power[MOST_DIGITS + 1];
    uint64_t step, low, high;
    int n_frac;
    uint32_t out;
    bool too_many;
};

static int digit_of(const struct multiples *m, uint64_t n, int at)
{
    return (int)(n / m->power[at] % 10);
}

static int n_digits(const struct multiples *m, uint64_t n)
{
    int k = m->n_frac + 1;
    while (k < MOST_DIGITS && n >= m->power[k])
        k++;
    return k;
}

/* x or y first; NOWHERE is neither. */
static int32_t either(struct multiples *m, int32_t x, int32_t y)
{
    if (x == NOWHERE || y == NOWHERE)
        return x == NOWHERE ? y : x;
    return (int32_t)grammar_g_node(m->b, GRAMMAR_SPLIT, (uint32_t)x, (uint32_t)y);
}

/* One of the bytes, then `next`. */
static int32_t step_on(struct multiples *m, int first, int last, int32_t next)
{
    struct grammar_set set = {{0}};
    if (next == NOWHERE)
        return NOWHERE;
    for (int c = first; c <= last; c++)
        set.bit[c >> 6] |= (uint64_t)1 << (c & 63);
    return (int32_t)grammar_g_node(m->b, GRAMMAR_BYTES, (uint32_t)next, grammar_g_set(m->b, &set));
}

static int32_t state_at(struct multiples *m, int n_left, uint64_t remainder, int at);

static int32_t digits(struct multiples *m, int n_left, uint64_t remainder, int at)
{
    int first = at & AT_LOW ? digit_of(m, m->low, n_left - 1) : 0;
    const int last = at & AT_HIGH ? digit_of(m, m->high, n_left - 1) : 9;
    const int low = first;
    int32_t all = NOWHERE, same = NOWHERE;
    if (at & AT_FIRST && n_left > m->n_frac + 1 && !first)
        first = 1; /* no superfluous zeros */
    int from = first;
    for (int d = first; d <= last && !m->too_many; d++) {
        const int next_at = (d == low ? at & AT_LOW : 0) | (d == last ? at & AT_HIGH : 0);
        const int32_t next = state_at(
            m, n_left - 1, (remainder + (uint64_t)d * m->power[n_left - 1]) % m->step, next_at);
        if (next != same && d > first) {
            all = either(m, all, step_on(m, '0' + from, '0' + d - 1, same));
            from = d;
        }
        same = next;
    }
    return first > last ? NOWHERE : either(m, all, step_on(m, '0' + from, '0' + last, same));
}

static int32_t make_state(struct multiples *m, int n_left, uint64_t remainder, int at)
{
    const bool ends = n_left <= m->n_frac && !(at & AT_POINT) && !remainder &&
                      !(at & AT_LOW && m->low % m->power[n_left]);
    const int32_t here = ends ? (int32_t)m->out : NOWHERE;
    if (!n_left)
        return here;
    if (n_left == m->n_frac && !(at & AT_POINT))
        return either(m, here, step_on(m, '.', '.', state_at(m, n_left, remainder, at | AT_POINT)));
    return either(m, here, digits(m, n_left, remainder, at));
}

static struct state *find(struct multiples *m, int n_left, uint64_t remainder, int at)
{
    uint64_t h =
        (remainder * 64 + (uint64_t)n_left * 2 + (uint64_t)at * 1024) * 0x9E3779B97F4A7C15u;
    struct state *s = &m->slot[(h >> 32) & (m->n_slots - 1)];
    while (s->used && (s->remainder != remainder || s->n_left != n_left || s->at != at))
        s = s == &m->slot[m->n_slots - 1] ? m->slot : s + 1;
    return s;
}

static bool grow_slots(struct multiples *m)
{
    const size_t n = m->n_slots ? 2 * m->n_slots : FIRST_SLOTS;
    struct multiples old = *m;
    struct state *slot = mem_calloc(n, sizeof *slot);
    if (!slot) {
        grammar_g_nomem(m->b);
        m->too_many = true;
        return false;
    }
    m->slot = slot;
    m->n_slots = n;
    for (size_t i = 0; i < old.n_slots; i++)
        if (old.slot[i].used)
            *find(m, old.slot[i].n_left, old.slot[i].remainder, old.slot[i].at) = old.slot[i];
    mem_free(old.slot);
    return true;
}

static int32_t state_at(struct multiples *m, int n_left, uint64_t remainder, int at)
{
    const uint64_t missing = remainder ? m->step - remainder : 0;
    if (m->too_many || missing >= m->power[n_left])
        return NOWHERE; /* no digits reach a multiple */
    struct state *s = find(m, n_left, remainder, at);
    if (s->used)
        return s->node;
    m->too_many = m->n_states++ >= MOST_STATES;
    if (!grammar_g_step(m->b, 16))
        return NOWHERE;
    const int32_t node = make_state(m, n_left, remainder, at);
    if (2 * ++m->n_used > m->n_slots && !grow_slots(m))
        return NOWHERE;
    s = find(m, n_left, remainder, at);
    *s = (struct state){remainder, node, (uint8_t)n_left, (uint8_t)at, true};
    return node;
}

/* Numbers of any length from low to high, both of them at or above 0. */
static struct grammar_piece from_to(struct multiples *m, uint64_t low, uint64_t high)
{
    struct grammar_piece none = grammar_g_never(m->b);
    if (low > high)
        return none;
    const uint32_t out = grammar_g_node(m->b, GRAMMAR_JUMP, 0, 0);
    m->low = low;
    m->high = high;
    m->out = out;
    m->n_states = m->n_used = 0;
    memset(m->slot, 0, m->n_slots * sizeof *m->slot);
    const int shortest = n_digits(m, low), longest = n_digits(m, high);
    int32_t all = NOWHERE;
    for (int n = shortest; n <= longest && !m->too_many; n++)
        all =
            either(m, all,
                   digits(m, n, 0,
                          AT_FIRST | (n == shortest ? AT_LOW : 0) | (n == longest ? AT_HIGH : 0)));
    return all == NOWHERE ? none : (struct grammar_piece){(uint32_t)all, out};
}

/* |x| in units, rounded towards the range that it bounds from below or above.  False: too many
 * digits. */
static bool scale(const struct multiples *m, const struct form_bound *x, bool below, uint64_t *out)
{
    uint64_t n = 0;
    bool rest = false;
    if (x->n_int + m->n_frac > MOST_DIGITS - 1)
        return false;
    for (int i = 0; i < x->n_int + m->n_frac; i++)
        n = n * 10 + (i < x->n_int + x->n_frac ? (uint64_t)(x->digit[i] - '0') : 0);
    for (int i = m->n_frac; i < x->n_frac; i++)
        rest = rest || x->digit[x->n_int + i] != '0';
    if (below && (rest || x->exclusive))
        n++;
    if (!below && !rest && x->exclusive && n == 0)
        n = UINT64_MAX; /* nothing is below 0 */
    else if (!below && !rest && x->exclusive)
        n--;
    *out = n;
    return true;
}

static uint64_t gcd(uint64_t x, uint64_t y)
{
    while (y) {
        const uint64_t rest = x % y;
        x = y;
        y = rest;
    }
    return x;
}

/* The multiples on one side of 0 from `from` (unset or on the other side: from least) to `to`. */
static struct grammar_piece one_side(struct multiples *m, const struct form_bound *from,
                                     const struct form_bound *to, uint64_t least, bool negative)
{
    uint64_t low = least,
             high = m->power[m->n_frac + 16 < MOST_DIGITS ? m->n_frac + 16 : MOST_DIGITS - 1] - 1;
    bool fits = true;
    if (from->set && from->negative == negative)
        fits = scale(m, from, true, &low);
    if (to->set && fits && to->n_int + m->n_frac < MOST_DIGITS) /* no longer numbers are written */
        fits = scale(m, to, false, &high);
    else if (low > high)
        high = m->power[MOST_DIGITS] - 1;
    m->too_many = m->too_many || !fits;
    if (m->too_many || high == UINT64_MAX)
        return grammar_g_never(m->b);
    return from_to(m, low < least ? least : low, high);
}

bool grammar_f_multiples(struct grammar_form *f, const struct form_bound *low,
                         const struct form_bound *high, const struct form_bound *step, bool whole,
                         struct grammar_piece *out)
{
    struct multiples m = {.b = f->b, .n_frac = step->n_frac};
    struct grammar_piece p = grammar_g_never(f->b);
    m.power[0] = 1;
    for (int i = 1; i <= MOST_DIGITS; i++)
        m.power[i] = m.power[i - 1] * 10;
    *out = p;
    if (step->n_int + step->n_frac >= MOST_DIGITS)
        return false;
    for (int i = 0; i < step->n_int + step->n_frac; i++)
        m.step = m.step * 10 + (uint64_t)(step->digit[i] - '0');
    if (whole) {
        m.step /= gcd(m.step, m.power[m.n_frac]);
        m.n_frac = 0;
    }
    if (!grow_slots(&m))
        return true;
    if (!high->set || !high->negative)
        p = grammar_g_alt(f->b, one_side(&m, low, high, 0, false), p);
    if (!low->set || low->negative)
        p = grammar_g_alt(
            f->b, grammar_g_cat(f->b, grammar_g_word(f->b, "-"), one_side(&m, high, low, 1, true)),
            p);
    mem_free(m.slot);
    *out = p;
    return !m.too_many;
}
