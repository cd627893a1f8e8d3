/* SPDX-License-Identifier: Apache-2.0 */
/* facts - the table of counters. */
#include "ingle/ingle.h"

#include <stddef.h>
#include <string.h>

/* A member's kind from its type; arrays of characters are texts. */
#define KIND(type, member)                                                                         \
    _Generic(((const type *)0)->member, int64_t: INGLE_FACT_INT, uint64_t: INGLE_FACT_UINT,        \
             double: INGLE_FACT_NUMBER, bool: INGLE_FACT_FLAG, const char *: INGLE_FACT_TEXT)
#define TYPE(group) fact_##group

/* Names for the types of groups. */
#define GROUP(group, type) typedef struct type fact_##group;
#define FACT(...)
#define TIME(...)
#define MEAN(...)
#include "engine/facts.inc"
#undef GROUP
#undef FACT
#undef TIME
#undef MEAN

static const struct ingle_fact facts[] = {
#define GROUP(group, type)
#define FACT(group, member, key, metric, form, help)                                               \
    {#group, KIND(TYPE(group), member), offsetof(TYPE(group), member), false,                      \
     INGLE_FACT_INT, 0, 0, 0, key, metric, form, help},
#define TIME(group, member, key, metric, form, help)                                               \
    {#group, INGLE_FACT_TIME, offsetof(TYPE(group), member), false, INGLE_FACT_INT, 0, 0, 0, key,  \
     metric, form, help},
#define MEAN(group, member, divisor, plus, none, key, metric, form, help)                          \
    {#group, KIND(TYPE(group), member), offsetof(TYPE(group), member), true,                       \
     KIND(TYPE(group), divisor), offsetof(TYPE(group), divisor), plus, none, key, metric, form,    \
     help},
#include "engine/facts.inc"
};
enum { N_FACTS = sizeof facts / sizeof *facts };

const struct ingle_fact *ingle_facts(const char *group, size_t *n)
{
    size_t at = 0;
    while (at < N_FACTS && strcmp(facts[at].group, group) != 0)
        at++;
    *n = 0;
    while (at + *n < N_FACTS && strcmp(facts[at + *n].group, group) == 0)
        ++*n;
    return *n ? &facts[at] : NULL;
}

static double number_at(enum ingle_fact_kind kind, const void *of, size_t at)
{
    const char *p = (const char *)of + at;
    switch (kind) {
    case INGLE_FACT_INT: {
        int64_t v;
        memcpy(&v, p, sizeof v);
        return (double)v;
    }
    case INGLE_FACT_UINT:
    case INGLE_FACT_TIME: {
        uint64_t v;
        memcpy(&v, p, sizeof v);
        return kind == INGLE_FACT_TIME ? (double)v * 1e-9 : (double)v;
    }
    case INGLE_FACT_NUMBER: {
        double v;
        memcpy(&v, p, sizeof v);
        return v;
    }
    case INGLE_FACT_FLAG: {
        bool v;
        memcpy(&v, p, sizeof v);
        return v;
    }
    case INGLE_FACT_TEXT:
        break;
    }
    return 0;
}

double ingle_fact_number(const struct ingle_fact *f, const void *of)
{
    const double v = number_at(f->kind, of, f->at);
    if (!f->mean)
        return v;
    const double n = number_at(f->divisor_kind, of, f->divisor_at);
    return n > 0 ? v / n + f->plus : f->none;
}

const char *ingle_fact_text(const struct ingle_fact *f, const void *of)
{
    return f->kind == INGLE_FACT_TEXT ? (const char *)of + f->at : NULL;
}
