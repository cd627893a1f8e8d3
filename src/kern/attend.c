/* SPDX-License-Identifier: Apache-2.0 */
/* attend - scratch, and the choice of kernels. */
#include "kern/attend.h"
#include "base/cpu.h"
#include "kern/attend_coded.h"
#include "kern/attend_part.h"

/* Per pair of row and head: the query, three states and a vector of sums; then one page of
 * keys and one of values in f32, and the scores of the widest tile against a page. */
size_t kern_attend_scratch(const struct kern_attend *a)
{
    size_t pairs, kw = (size_t)attend_whole(a->k_width), vw = (size_t)attend_whole(a->v_width);
    size_t pair, n, page;
    if (kern_kv_needs_coded(a->k_codec, a->v_codec))
        return kern_attend_coded_scratch(a);
    if (!num_mul((size_t)a->n_rows, (size_t)a->n_heads, &pairs))
        return 0;
    pairs = pairs < ATTEND_GROUP ? (pairs + 7) / 8 * 8 : ATTEND_GROUP;
    if (!num_add(kw, 3 * vw, &pair) || !num_add(pair, 4 * ATTEND_LANES, &pair) ||
        !num_mul(pair, pairs, &n) || !num_add(kw, (size_t)attend_panels(a->v_width), &page) ||
        !num_mul(page, KERN_PAGE, &page) || !num_add(n, page, &n) ||
        !num_add(n, 16 * KERN_PAGE + 1024, &n) || !num_mul(n, sizeof(float), &n))
        return 0;
    return n;
}

#define KERN_ATTEND(needs, table)                   extern const struct kern_attend_table table;
#define KERN_ATTEND_FAST(needs, recipe, law, table) extern const struct kern_attend_table table;
#define KERN_ATTEND_CODED(needs, table)             extern const struct kern_attend_table table;
#include "kern/attend.inc"
#undef KERN_ATTEND
#undef KERN_ATTEND_FAST
#undef KERN_ATTEND_CODED

void kern_attend_table_init(struct kern_attend_kernels *t, uint32_t cpu)
{
    *t = (struct kern_attend_kernels){.decoded = kern_attend_ref};
#define KERN_ATTEND(needs, table)                                                                  \
    if (((needs) & ~cpu) == 0) {                                                                   \
        t->exact = table;                                                                          \
        t->name = #table;                                                                          \
    }
#define KERN_ATTEND_FAST(needs, name, law, table)                                                  \
    if (((needs) & ~cpu) == 0) {                                                                   \
        t->fast = table;                                                                           \
        t->fast_name = #table;                                                                     \
        t->recipe = name;                                                                          \
    }
#define KERN_ATTEND_CODED(needs, table)                                                            \
    if (((needs) & ~cpu) == 0) {                                                                   \
        t->coded = table;                                                                          \
        t->coded_name = #table;                                                                    \
    }
#include "kern/attend.inc"
#undef KERN_ATTEND
#undef KERN_ATTEND_FAST
#undef KERN_ATTEND_CODED
}
