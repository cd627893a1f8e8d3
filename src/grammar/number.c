/* SPDX-License-Identifier: Apache-2.0 */
/*
 * grammar_number - numbers between bounds, digit by digit.
 *
 * A bound is a decimal; numbers at or above 0 are compared from their first digit on, those
 * below 0 are a minus sign before the mirrored range.
 */
#include "grammar/form.h"

#include <string.h>

enum { MOST_FRACTION = 16 };

/* A side of the range of numbers at or above 0. */
struct side {
    bool set, exclusive;
    const char *whole, *frac;
    int n_whole, n_frac;
};

/* The exponent of a number, if it has one: far beyond what a bound can have at most. */
static int exponent_of(const char **s)
{
    enum { MOST = 9999 };
    int x = 0;
    if (**s != 'e' && **s != 'E')
        return 0;
    const bool negative = *++*s == '-';
    *s += **s == '-' || **s == '+';
    for (; **s >= '0' && **s <= '9'; ++*s)
        x = x > MOST ? x : 10 * x + (**s - '0');
    return negative ? -x : x;
}

bool grammar_f_bound(struct form_bound *out, const char *number, bool *large)
{
    struct form_bound x = {.set = true, .negative = *number == '-'};
    char digit[2 * FORM_DIGITS];
    const char *s = number + x.negative;
    /* digits from the first that is not 0; those in front of the point, below 0 too */
    int n = 0, n_int = 0;
    bool in_fraction = false;
    *large = false;
    for (; (*s >= '0' && *s <= '9') || (*s == '.' && !in_fraction); s++) {
        in_fraction = in_fraction || *s == '.';
        if (*s == '.')
            continue;
        if (n == 2 * FORM_DIGITS) {
            *large = !in_fraction;
            return false;
        }
        if (n || *s != '0')
            digit[n++] = *s;
        n_int += n ? !in_fraction : -in_fraction;
    }
    n_int += exponent_of(&s);
    while (n && digit[n - 1] == '0' && n > n_int)
        n--;
    if (*s || s == number + x.negative)
        return false;
    if (!n)
        n_int = 0;
    *large = n_int > FORM_DIGITS;
    if (*large || n - n_int > FORM_DIGITS)
        return false;
    x.n_int = n_int > 0 ? n_int : 1;
    x.n_frac = n > n_int ? n - n_int : 0;
    memset(x.digit, '0', sizeof x.digit);
    for (int i = 0; i < n; i++)
        x.digit[i + (n_int > 0 ? 0 : 1 - n_int)] = digit[i];
    if (!n)
        x.negative = false;
    *out = x;
    return true;
}

static struct grammar_piece digit(struct grammar_builder *b, int first, int last)
{
    if (first > last)
        return grammar_g_never(b);
    return grammar_g_byte_range(b, (unsigned)first, (unsigned)last);
}

static struct grammar_piece any_digits(struct grammar_builder *b, int min, int max)
{
    return grammar_g_repeat(b, digit(b, '0', '9'), (uint32_t)min,
                            (uint32_t)(max < min ? min : max));
}

static struct grammar_piece then(struct grammar_builder *b, int first, int last,
                                 struct grammar_piece rest)
{
    return grammar_g_cat(b, digit(b, first, last), rest);
}

/* ---- whole numbers of n digits ---- */

/* Those at or above the digits at s. */
static struct grammar_piece at_least(struct grammar_builder *b, const char *s, int n)
{
    if (!n)
        return grammar_g_empty(b);
    return grammar_g_alt(b, then(b, s[0], s[0], at_least(b, s + 1, n - 1)),
                      then(b, s[0] + 1, '9', any_digits(b, n - 1, n - 1)));
}

static struct grammar_piece at_most(struct grammar_builder *b, const char *s, int n, int lowest)
{
    if (!n)
        return grammar_g_empty(b);
    return grammar_g_alt(b, then(b, s[0], s[0], at_most(b, s + 1, n - 1, '0')),
                      then(b, lowest, s[0] - 1, any_digits(b, n - 1, n - 1)));
}

static struct grammar_piece between_digits(struct grammar_builder *b, const char *s, const char *t,
                                           int n)
{
    if (!n)
        return grammar_g_empty(b);
    if (s[0] == t[0])
        return then(b, s[0], s[0], between_digits(b, s + 1, t + 1, n - 1));
    struct grammar_piece p = then(b, s[0], s[0], at_least(b, s + 1, n - 1));
    p = grammar_g_alt(b, p, then(b, s[0] + 1, t[0] - 1, any_digits(b, n - 1, n - 1)));
    return grammar_g_alt(b, p, then(b, t[0], t[0], at_most(b, t + 1, n - 1, '0')));
}

/* Numbers without superfluous zeros from s to t (t NULL: to the most digits). */
static struct grammar_piece wholes(struct grammar_builder *b, const char *s, int n_s,
                                   const char *t, int n_t)
{
    const int longest = t ? n_t : (n_s + 2 > 16 ? n_s + 2 : 16);
    struct grammar_piece p;
    if (t && (n_s > n_t || (n_s == n_t && memcmp(s, t, (size_t)n_s) > 0)))
        return grammar_g_never(b);
    if (t && n_s == n_t)
        return between_digits(b, s, t, n_s);
    p = at_least(b, s, n_s);
    if (t)
        p = grammar_g_alt(b, p, at_most(b, t, n_t, '1'));
    const int to = t ? n_t - 1 : longest;
    if (n_s + 1 <= to)
        p = grammar_g_alt(b, p, then(b, '1', '9', any_digits(b, n_s, to - 1)));
    return p;
}

/* s + 1 or s - 1 of a whole number's digits; false: it does not fit or is below 0. */
static bool add_one(char *s, int *n)
{
    int i = *n;
    while (i > 0 && s[i - 1] == '9')
        s[--i] = '0';
    if (i > 0) {
        s[i - 1]++;
        return true;
    }
    if (*n == 2 * FORM_DIGITS)
        return false;
    memmove(s + 1, s, (size_t)*n);
    s[0] = '1';
    ++*n;
    return true;
}

static bool take_one(char *s, int *n)
{
    int i = *n;
    if (*n == 1 && s[0] == '0')
        return false;
    while (s[i - 1] == '0')
        s[--i] = '9';
    s[i - 1]--;
    if (*n > 1 && s[0] == '0')
        memmove(s, s + 1, (size_t)--*n);
    return true;
}

/* ---- fractions: the digits after the point, at least `some` ---- */

static struct grammar_piece frac_least(struct grammar_builder *b, const char *s, int n, bool above,
                                       int some, int left)
{
    if (!n && !above)
        return any_digits(b, some, left);
    if (left <= 0)
        return grammar_g_never(b);
    const char first = n ? s[0] : '0';
    struct grammar_piece rest;
    if (n)
        rest = frac_least(b, s + 1, n - 1, above, 0, left - 1);
    else
        rest = frac_least(b, s, 0, true, 0, left - 1);
    return grammar_g_alt(b, then(b, first, first, rest),
                      then(b, first + 1, '9', any_digits(b, 0, left - 1)));
}

static struct grammar_piece frac_most(struct grammar_builder *b, const char *s, int n, bool below,
                                      int some, int left)
{
    if (!n && below)
        return grammar_g_never(b);
    if (!n)
        return grammar_g_repeat(b, digit(b, '0', '0'), (uint32_t)some,
                             (uint32_t)(left > some ? left : some));
    /* Where nothing more is read, it is less than what is left of s. */
    struct grammar_piece p = some ? grammar_g_never(b) : grammar_g_empty(b);
    if (left <= 0)
        return p;
    p = grammar_g_alt(b, then(b, '0', s[0] - 1, any_digits(b, 0, left - 1)), p);
    return grammar_g_alt(b, then(b, s[0], s[0], frac_most(b, s + 1, n - 1, below, 0, left - 1)), p);
}

/* From digit i of both sides on. */
static struct grammar_piece frac_between(struct grammar_builder *b, const struct side *low,
                                         const struct side *high, int i, int left)
{
    const int n_low = low->n_frac > i ? low->n_frac - i : 0;
    const int n_high = high->n_frac > i ? high->n_frac - i : 0;
    const char *t = high->frac + i;
    if (!n_high && (high->exclusive || n_low || low->exclusive))
        return grammar_g_never(b);
    if (!n_low && !low->exclusive)
        return frac_most(b, t, n_high, high->exclusive, i == 0, left);
    if (left <= 0)
        return grammar_g_never(b);
    const char first = n_low ? low->frac[i] : '0';
    if (first > t[0])
        return grammar_g_never(b);
    if (first == t[0])
        return then(b, first, first, frac_between(b, low, high, i + 1, left - 1));
    const struct grammar_piece rest =
        frac_least(b, low->frac + i + 1, n_low ? n_low - 1 : 0, low->exclusive, 0, left - 1);
    struct grammar_piece p = then(b, first, first, rest);
    p = grammar_g_alt(b, p, then(b, first + 1, t[0] - 1, any_digits(b, 0, left - 1)));
    return grammar_g_alt(
        b, p, then(b, t[0], t[0], frac_most(b, t + 1, n_high - 1, high->exclusive, 0, left - 1)));
}

/* digits, then a point and `frac`, which may be missing where none is set. */
static struct grammar_piece with_fraction(struct grammar_builder *b, const char *digits, int n,
                                          struct grammar_piece frac, bool none)
{
    struct grammar_piece p = grammar_g_cat(b, grammar_g_word(b, "."), frac);
    if (none)
        p = grammar_g_opt(b, p);
    return grammar_g_cat(b, grammar_g_literal(b, digits, (size_t)n), p);
}

static struct grammar_piece decimals(struct grammar_builder *b, const struct side *low,
                                     const struct side *high)
{
    char s[2 * FORM_DIGITS], t[2 * FORM_DIGITS];
    int n_s = low->n_whole, n_t = high->n_whole;
    memcpy(s, low->whole, (size_t)n_s);
    if (high->set)
        memcpy(t, high->whole, (size_t)n_t);
    const bool low_itself = !low->n_frac && !low->exclusive;
    const bool high_itself = high->n_frac || !high->exclusive;
    if (high->set && n_s == n_t && memcmp(s, t, (size_t)n_s) == 0)
        return with_fraction(b, s, n_s, frac_between(b, low, high, 0, MOST_FRACTION),
                             low_itself && high_itself);
    if (high->set && (n_s > n_t || (n_s == n_t && memcmp(s, t, (size_t)n_s) > 0)))
        return grammar_g_never(b);
    struct grammar_piece p =
        with_fraction(b, s, n_s,
                      frac_least(b, low->frac, low->n_frac, low->exclusive, 1, MOST_FRACTION),
                      low_itself);
    if (high->set)
        p = grammar_g_alt(
            b, p,
            with_fraction(b, t, n_t,
                          frac_most(b, high->frac, high->n_frac, high->exclusive, 1, MOST_FRACTION),
                          high_itself));
    if (!add_one(s, &n_s) || (high->set && !take_one(t, &n_t)))
        return p;
    struct grammar_piece inner =
        grammar_g_opt(b, grammar_g_cat(b, grammar_g_word(b, "."), any_digits(b, 1, MOST_FRACTION)));
    inner = grammar_g_cat(b, wholes(b, s, n_s, high->set ? t : NULL, n_t), inner);
    return grammar_g_alt(b, p, inner);
}

static struct grammar_piece integers(struct grammar_builder *b, const struct side *low,
                                     const struct side *high)
{
    char s[2 * FORM_DIGITS], t[2 * FORM_DIGITS];
    int n_s = low->n_whole, n_t = high->n_whole;
    memcpy(s, low->whole, (size_t)n_s);
    if (high->set)
        memcpy(t, high->whole, (size_t)n_t);
    if ((low->n_frac || low->exclusive) && !add_one(s, &n_s))
        return grammar_g_never(b);
    if (high->set && !high->n_frac && high->exclusive && !take_one(t, &n_t))
        return grammar_g_never(b);
    return wholes(b, s, n_s, high->set ? t : NULL, n_t);
}

static struct side side_of(const struct form_bound *x)
{
    return (struct side){x->set, x->exclusive, x->digit, x->digit + x->n_int, x->n_int, x->n_frac};
}

struct grammar_piece grammar_f_between(struct grammar_form *f, const struct form_bound *low,
                                    const struct form_bound *high, bool whole)
{
    struct grammar_builder *b = f->b;
    const struct side zero = {true, false, "0", "", 1, 0}, above_zero = {true, true, "0", "", 1, 0};
    const struct side none = {false, false, "", "", 0, 0};
    struct grammar_piece p = grammar_g_never(b);
    if (!high->set || !high->negative) {
        const struct side from = low->set && !low->negative ? side_of(low) : zero;
        const struct side to = high->set ? side_of(high) : none;
        p = grammar_g_alt(b, whole ? integers(b, &from, &to) : decimals(b, &from, &to), p);
    }
    if (!low->set || low->negative) {
        const struct side from = high->set && high->negative ? side_of(high) : above_zero;
        const struct side to = low->set ? side_of(low) : none;
        const struct grammar_piece q =
            whole ? integers(b, &from, &to) : decimals(b, &from, &to);
        p = grammar_g_alt(b, grammar_g_cat(b, grammar_g_word(b, "-"), q), p);
    }
    return p;
}
