/* SPDX-License-Identifier: Apache-2.0 */
/* check_matmul - packing against plain decoding, and every product kernel against plain C:
 * random shapes, strides, offsets and row lists; any bits as weights. */
#include "kerncheck/checks.h"
#include "base/cpu.h"
#include "base/mem.h"
#include "kern/kernels.h"
#include <math.h>
#include <stdlib.h>

static const struct kernel {
    const char *name;
    uint32_t needs, code;
    kern_matmul_fn *fn;
} kernels[] = {
#define KERN_MATMUL(needs, code, fn) {#fn, needs, KERN_CODE_##code, fn},
#include "kern/matmul.inc"
#undef KERN_MATMUL
#define KERN_MANY(needs, code, fn) {#fn, needs, KERN_CODE_##code, fn},
#include "kern/many.inc"
#undef KERN_MANY
#define KERN_AHEAD(needs, code, fn) {#fn, needs, KERN_CODE_##code, fn},
#include "kern/ahead.inc"
#undef KERN_AHEAD
};

static const struct fast {
    const char *name, *recipe;
    uint32_t needs, code; /* needs 0: the law of the recipe, of any code */
    kern_matmul_fn *fn;
} fast[] = {
#define KERN_FAST_REF(recipe, fn)          {#fn, recipe, 0, 0, fn},
#define KERN_FAST(needs, recipe, code, fn) {#fn, recipe, needs, KERN_CODE_##code, fn},
#include "kern/fast.inc"
#undef KERN_FAST
#undef KERN_FAST_REF
};

static const struct quantiser {
    const char *name;
    uint32_t needs;
    enum kern_act_kind kind;
    kern_act_fn *fn;
} quantisers[] = {
#define KERN_ACT(needs, kind, fn) {#fn, needs, KERN_ACT_##kind, fn},
#include "kern/act.inc"
#undef KERN_ACT
};

static const struct tiler {
    uint32_t needs;
    enum kern_act_kind kind;
    kern_act_fn *fn;
} tilers[] = {
#define KERN_TILES(needs, kind, fn) {needs, KERN_ACT_##kind, fn},
#include "kern/tiles.inc"
#undef KERN_TILES
    {UINT32_MAX, KERN_ACT_KINDS, NULL},
};

enum { N_KERNELS = sizeof kernels / sizeof *kernels,
       N_QUANTISERS = sizeof quantisers / sizeof *quantisers,
       GUARD = 16 };

static void *take(size_t n_bytes)
{
    void *p = mem_alloc(n_bytes ? n_bytes : 1);
    if (!p) {
        printf("no memory for the check\n");
        exit(1);
    }
    return p;
}

/* A weight matrix of random bits, packed. */
struct weights {
    struct kern_matrix m;
    uint8_t *stored;
    size_t row_bytes, panel_bytes;
};

/* A block of equal bytes, but with scales that are numbers and mostly not zero. */
static void extreme_block(uint8_t *at, uint32_t type, size_t n_bytes, uint8_t v)
{
    if (n_bytes <= 4) /* a plain float */
        return;
    for (size_t i = 0; i < n_bytes; i++)
        at[i] = v & 0xBF;
    for (size_t i = 0; i < n_bytes && v; i++) {
        at[i] = v;
        if (quant_find_bad(type, at, 1) >= 0)
            at[i] = 0x3B;
    }
    if (!v) /* where the halves of most types are */
        at[1] = at[n_bytes - 1] = 0x3B;
}

/* Beside a type: its activations stay f32. */
enum { FLOATS = 256 };

static ingle_status matrix_init(struct kern_matrix *m, uint32_t type, int64_t out, int64_t in,
                                struct err *err)
{
    return type & FLOATS ? kern_matrix_init_floats(m, type & ~(uint32_t)FLOATS, out, in, err)
                         : kern_matrix_init(m, type, out, in, err);
}

static void weights_make(struct weights *w, struct noise *r, uint32_t type, int64_t out, int64_t in)
{
    struct err err;
    if (matrix_init(&w->m, type, out, in, &err) != INGLE_OK) {
        printf("%s\n", err.msg);
        exit(1);
    }
    type = w->m.type;
    const struct quant_info *info = quant_info(type);
    w->row_bytes = (size_t)(in / info->n) * info->n_bytes;
    w->stored = take(w->row_bytes * (size_t)out + 1) ;
    uint8_t *at = w->stored;
    for (size_t i = 0; i < w->row_bytes * (size_t)out; i++)
        at[i] = (uint8_t)noise_next(r);
    const int64_t kind = noise_below(r, 3);
    if (kind == 0) /* mostly finite: no bits that would be the top of an exponent */
        for (size_t i = 0; i < w->row_bytes * (size_t)out; i++)
            at[i] &= 0xBF;
    if (kind == 1) /* extreme codes side by side, where narrow sums overflow */
        for (size_t i = 0; i < w->row_bytes * (size_t)out; i += info->n_bytes)
            extreme_block(at + i, type, info->n_bytes, noise_below(r, 2) ? 0xFF : 0);
    w->m.at = mem_big_alloc(kern_matrix_bytes(&w->m));
    if (!w->m.at)
        exit(1);
    /* In two calls when there is more than one panel. */
    const int64_t cut = noise_below(r, w->m.n_panels + 1);
    kern_pack(&w->m, 0, cut, w->stored);
    kern_pack(&w->m, cut, w->m.n_panels, w->stored + (size_t)cut * KERN_PANEL * w->row_bytes);
}

static void weights_free(struct weights *w)
{
    mem_big_free(w->m.at, kern_matrix_bytes(&w->m));
    mem_free(w->stored);
}

/* Unpacked rows are the decoded rows. */
static int check_pack(const struct weights *w)
{
    const struct kern_matrix *m = &w->m;
    float *want = take((size_t)m->in * sizeof *want), *got = take((size_t)m->in * sizeof *got);
    int bad = 0;
    for (int64_t o = 0; o < m->out && !bad; o++) {
        quant_decode(m->type, w->stored + (size_t)o * w->row_bytes, want, (size_t)m->in);
        kern_unpack_row(m, o, got);
        for (int64_t k = 0; k < m->in && !bad; k++)
            if (!noise_same(want[k], got[k])) {
                printf("%s %lld x %lld: row %lld, element %lld unpacks to %a, not %a\n",
                       quant_info(m->type)->name, (long long)m->out, (long long)m->in,
                       (long long)o, (long long)k, (double)got[k], (double)want[k]);
                bad = 1;
            }
    }
    mem_free(want);
    mem_free(got);
    return bad;
}

/* One activation; a group is mostly of one kind. */
static float draw(struct noise *r, int64_t kind)
{
    switch (kind) {
    case 0:
        return 0;
    case 1:
        return noise_bits((uint32_t)noise_next(r) & 0x807FFFFF); /* subnormal */
    case 2:
        return noise_unit(r) * 3e38f;
    case 3:
        return noise_bits((uint32_t)noise_next(r)); /* anything */
    case 4:
        return noise_below(r, 40) ? noise_unit(r) : INFINITY;
    case 5:
        return noise_below(r, 40) ? noise_unit(r) : NAN;
    case 6:
        return noise_unit(r) * 0x1p-90f * (float)noise_below(r, 4);
    case 7: /* halves between codes */
        return (float)(noise_below(r, 509) - 254) * 0.5f;
    case 8: /* all of one size: every code is 127 or -127 */
        return noise_below(r, 20) ? 3.0f : -3.0f;
    default:
        return noise_unit(r) * (noise_below(r, 30) ? 1.0f : 30.0f);
    }
}

struct acts {
    struct kern_act a;
    float *x;
    uint8_t *mem;
};

static void acts_make(struct acts *s, struct noise *r, enum kern_act_kind kind, int64_t n,
                      int64_t k, bool plain)
{
    const int64_t stride = k + noise_below(r, 9);
    const size_t shift = (size_t)noise_below(r, 5);
    s->x = take(((size_t)(n * stride) + shift) * sizeof *s->x);
    float *x = s->x + shift;
    const bool extreme = !plain && !noise_below(r, 4);
    for (int64_t i = 0; i < n * stride; i += 32) {
        const int64_t odd = extreme ? 8 : plain || noise_below(r, 2) ? 9 : noise_below(r, 9);
        for (int64_t j = i; j < i + 32 && j < n * stride; j++)
            x[j] = draw(r, odd);
    }
    const size_t n_bytes = kern_act_bytes(kind, n, k);
    s->mem = mem_big_alloc(n_bytes);
    if (!s->mem)
        exit(1);
    memset(s->mem, 0x5A, n_bytes);
    kern_act_init(&s->a, kind, n, k, x, stride, s->mem);
}

static void acts_free(struct acts *s)
{
    mem_big_free(s->mem, kern_act_bytes(s->a.kind, s->a.n, s->a.k));
    mem_free(s->x);
}

/* The tiles of all, cut where that may be, by the first that cpu allows; NULL: there is none, or
 * another kind. */
static uint8_t *tiles_make(struct acts *s, struct noise *r, uint32_t cpu)
{
    const struct tiler *t = tilers;
    while (t->fn && ((t->needs & ~cpu) != 0 || t->kind != s->a.kind))
        t++;
    if (!t->fn)
        return NULL;
    const size_t n_bytes = kern_act_tiles_bytes(s->a.kind, s->a.n, s->a.k);
    const int64_t cut = noise_below(r, s->a.n / KERN_TILES_ROWS + 1) * KERN_TILES_ROWS;
    uint8_t *mem = mem_big_alloc(n_bytes);
    if (!mem)
        exit(1);
    memset(mem, 0x5A, n_bytes);
    s->a.tiles = mem;
    t->fn(&s->a, cut, s->a.n);
    t->fn(&s->a, 0, cut);
    return mem;
}


/* Every quantiser against the first of its kind, which stays in s. */
static int check_acts(struct acts *s, uint32_t cpu)
{
    if (s->a.kind == KERN_ACT_F32)
        return 0;
    const size_t n_bytes = (size_t)s->a.n * s->a.row_bytes;
    uint8_t *want = NULL;
    int bad = 0;
    for (int i = N_QUANTISERS - 1; i >= 0; i--) /* the plain one is last to run */
        if (quantisers[i].kind == s->a.kind && (quantisers[i].needs & ~cpu) == 0 &&
            !quantisers[i].needs) {
            quantisers[i].fn(&s->a, 0, s->a.n);
            want = take(n_bytes);
            memcpy(want, s->mem, n_bytes);
        }
    for (int i = 0; i < N_QUANTISERS; i++) {
        if (quantisers[i].kind != s->a.kind || (quantisers[i].needs & ~cpu) != 0)
            continue;
        memset(s->mem, 0x5A, n_bytes);
        const int64_t cut = s->a.n / 2;
        quantisers[i].fn(&s->a, cut, s->a.n);
        quantisers[i].fn(&s->a, 0, cut);
        if (memcmp(want, s->mem, n_bytes) != 0) {
            printf("%s differs (k %lld)\n", quantisers[i].name, (long long)s->a.k);
            bad++;
        }
    }
    memcpy(s->mem, want, n_bytes);
    mem_free(want);
    return bad;
}

struct product {
    struct kern_matmul m;
    float *mem;
    size_t n; /* floats with guards */
};

static void product_make(struct product *p, struct noise *r, const struct weights *w,
                         const struct acts *s, const int32_t *row, int64_t n)
{
    const int64_t stride = w->m.out + noise_below(r, 20);
    p->n = (size_t)(n * stride) + 2 * GUARD;
    p->mem = take(p->n * sizeof *p->mem);
    p->m = (struct kern_matmul){&w->m, &s->a, row, n, p->mem + GUARD, stride};
}

static void product_run(struct product *p, kern_matmul_fn *fn, int64_t cut)
{
    memset(p->mem, 0x5A, p->n * sizeof *p->mem);
    fn(&p->m, cut, p->m.w->n_panels);
    fn(&p->m, 0, cut);
}

/* Results equal, and nothing between or around them touched. */
static bool product_same(const struct product *want, const struct product *got)
{
    for (size_t i = 0; i < want->n; i++)
        if (!noise_same(want->mem[i], got->mem[i])) {
            printf("at row %lld column %lld: %a, not %a: ",
                   (long long)(((int64_t)i - GUARD) / want->m.y_stride),
                   (long long)(((int64_t)i - GUARD) % want->m.y_stride), (double)got->mem[i],
                   (double)want->mem[i]);
            return false;
        }
    return true;
}

/* The plain product is close to the one in double precision over decoded weights. */
static int check_reference(struct noise *r, struct weights *w)
{
    const struct kern_matrix *m = &w->m;
    int bad = 0;
    struct acts s, f;
    struct product want, got;
    const int64_t n = 1 + noise_below(r, 3);
    acts_make(&s, r, m->act, n, m->in, true);
    (void)check_acts(&s, 0);
    f = s;
    kern_act_init(&f.a, KERN_ACT_F32, n, m->in, s.a.x, s.a.stride, NULL);
    product_make(&want, r, w, &f, NULL, n);
    product_make(&got, r, w, &s, NULL, n);
    float *scratch = take((size_t)m->in * sizeof *scratch);
    kern_matmul_reference(&want.m, 0, m->n_panels, scratch);
    for (int i = 0; i < N_KERNELS; i++)
        if (kernels[i].code == m->code && !kernels[i].needs)
            product_run(&got, kernels[i].fn, 0);
    for (int64_t i = 0; i < n; i++)
        for (int64_t o = 0; o < m->out; o++) {
            const float a = want.m.y[i * want.m.y_stride + o], b = got.m.y[i * got.m.y_stride + o];
            double mass = 0;
            kern_unpack_row(m, o, scratch);
            double max = 0;
            for (int64_t k = 0; k < m->in; k++) {
                mass += fabs((double)scratch[k] * (double)s.a.x[i * s.a.stride + k]);
                max = fmax(max, fabs((double)s.a.x[i * s.a.stride + k]));
            }
            double weight = 0; /* each activation is off by at most max / 254 */
            for (int64_t k = 0; k < m->in; k++)
                weight += fabs((double)scratch[k]);
            const double bound = (m->act == KERN_ACT_F32 ? 0 : weight * max / 253.9) +
                                 mass * (double)m->in * 1.2e-7 + (double)m->in * 0x1p-149;
            if (mass < 1e37 && weight * max < 1e37 && !(fabs((double)a - (double)b) <= bound)) {
                printf("%s: plain product %g, in double precision %g, bound %g\n",
                       quant_info(m->type)->name, (double)b, (double)a, bound);
                bad = 1;
            }
        }
    mem_free(scratch);
    mem_free(want.mem);
    mem_free(got.mem);
    acts_free(&s);
    return bad;
}

static int check_shape(struct noise *r, uint32_t type, int64_t out, int64_t in, int64_t n,
                       uint32_t cpu)
{
    struct weights w;
    struct acts s;
    struct product want, got, alone;
    weights_make(&w, r, type, out, in);
    int bad = check_pack(&w) + check_reference(r, &w);

    const int64_t n_x = noise_below(r, 2) ? n : 1 + noise_below(r, n);
    acts_make(&s, r, w.m.act, n_x, in, false);
    bad += check_acts(&s, cpu);
    uint8_t *tiles = tiles_make(&s, r, cpu);
    s.a.tiles = NULL;
    int32_t *row = take((size_t)n * sizeof *row);
    for (int64_t i = 0; i < n; i++)
        row[i] = (int32_t)noise_below(r, n_x);
    const bool listed = n > n_x || noise_below(r, 2);
    product_make(&want, r, &w, &s, listed ? row : NULL, n);
    got = alone = want;
    got.mem = take(got.n * sizeof *got.mem);
    got.m.y = got.mem + GUARD;
    for (int i = 0; i < N_KERNELS; i++) {
        const struct kernel *k = &kernels[i];
        if (k->code != w.m.code || (k->needs & ~cpu) != 0)
            continue;
        if (!k->needs && i < N_KERNELS) /* the law; it must also be indifferent to cuts */
            product_run(&want, k->fn, 0);
        product_run(&got, k->fn, noise_below(r, w.m.n_panels + 1));
        bool same = product_same(&want, &got);
        if (tiles) {
            s.a.tiles = tiles;
            product_run(&got, k->fn, noise_below(r, w.m.n_panels + 1));
            same = same && product_same(&want, &got);
            s.a.tiles = NULL;
        }
        /* One row of the batch alone. */
        const int64_t one = noise_below(r, n);
        alone = got;
        alone.m.row = &row[one];
        if (!listed)
            row[one] = (int32_t)one;
        alone.m.n = 1;
        alone.m.y = got.m.y + one * got.m.y_stride;
        memset(alone.m.y, 0x11, (size_t)out * sizeof(float));
        k->fn(&alone.m, 0, w.m.n_panels);
        same = same && product_same(&want, &got);
        if (!same) {
            printf("%s on %s %lld x %lld, %lld rows differs\n", k->name, quant_info(type)->name,
                   (long long)out, (long long)in, (long long)n);
            bad++;
        }
    }
    mem_free(got.mem);
    mem_free(want.mem);
    if (tiles)
        mem_big_free(tiles, kern_act_tiles_bytes(s.a.kind, n_x, in));
    mem_free(row);
    acts_free(&s);
    weights_free(&w);
    return bad;
}

/* What rounding may do to the sum of a weight row times an activation row, whose terms' sizes
 * add up to mass.  Floats: both are off by 2^-8 of themselves, sums by 2^-24 at each k. */
static double law_bound(const struct kern_matrix *w, int64_t o, const float *row, const float *x,
                        double mass)
{
    double bound = mass * ((double)w->in * 0x1p-23) + 1e-36;
    if (w->act == KERN_ACT_F32)
        return bound + mass * 0x1.1p-7;
    /* a little more than half a step of either scale */
    for (int64_t k0 = 0; k0 < w->in; k0 += 256) {
        int8_t q[256];
        const double s = 0.57 * (double)kern_fast_wide_read(w, o / KERN_PANEL, k0 / 256,
                                                            (int)(o % KERN_PANEL), q);
        double max = 1e-30;
        for (int64_t k = k0; k < k0 + 256; k++)
            max = fmax(max, fabs((double)x[k]));
        for (int64_t k = k0; k < k0 + 256; k++)
            bound += s * fabs((double)x[k]) + (s + fabs((double)row[k])) * max / 253.9;
    }
    return bound;
}

/* The plain product of a recipe is close to the one in double precision. */
static int check_law(const struct fast *law, const struct kern_matmul *m, const struct acts *s)
{
    const struct kern_matrix *w = m->w;
    float *row = take((size_t)w->in * sizeof *row);
    int bad = 0;
    for (int64_t o = 0; o < w->out && !bad; o++) {
        kern_unpack_row(w, o, row);
        for (int64_t i = 0; i < m->n && !bad; i++) {
            const float *x = s->a.x + i * s->a.stride;
            double sum = 0, mass = 0;
            for (int64_t k = 0; k < w->in; k++) {
                const double v = (double)row[k] * (double)x[k];
                sum += v;
                mass += fabs(v);
            }
            const double bound = law_bound(w, o, row, x, mass);
            const double got = (double)m->y[i * m->y_stride + o];
            if (mass < 1e37 && !(fabs(got - sum) <= bound)) {
                printf("%s on %s: %g, in double precision %g, bound %g\n", law->name,
                       quant_info(w->type)->name, got, sum, bound);
                bad = 1;
            }
        }
    }
    mem_free(row);
    return bad;
}

/* Whether a recipe is for a code. */
static bool is_law(const struct fast *law, uint32_t code)
{
    for (size_t i = 0; i < sizeof fast / sizeof *fast; i++)
        if (fast[i].needs && fast[i].code == code && strcmp(fast[i].recipe, law->recipe) == 0)
            return true;
    return false;
}

static int check_fast(struct noise *r, uint32_t type, int64_t out, int64_t in, int64_t n,
                      uint32_t cpu)
{
    struct weights w;
    struct acts s;
    struct product want, got;
    int bad = 0;
    weights_make(&w, r, type, out, in);
    const bool plain = noise_below(r, 2);
    acts_make(&s, r, kern_matmul_fast_act(&w.m), n, in, plain);
    bad += check_acts(&s, cpu);
    uint8_t *tiles = tiles_make(&s, r, cpu);
    s.a.tiles = noise_below(r, 2) ? tiles : NULL;
    int32_t *row = take((size_t)n * sizeof *row);
    for (int64_t i = 0; i < n; i++)
        row[i] = (int32_t)noise_below(r, n);
    for (size_t l = 0; l < sizeof fast / sizeof *fast; l++) {
        if (fast[l].needs || !is_law(&fast[l], w.m.code))
            continue;
        product_make(&want, r, &w, &s, NULL, n);
        product_run(&want, fast[l].fn, 0);
        bad += plain ? check_law(&fast[l], &want.m, &s) : 0;
        want.m.row = noise_below(r, 2) ? row : NULL;
        product_run(&want, fast[l].fn, 0);
        got = want;
        got.mem = take(got.n * sizeof *got.mem);
        got.m.y = got.mem + GUARD;
        for (size_t i = 0; i < sizeof fast / sizeof *fast; i++) {
            const struct fast *k = &fast[i];
            if (!k->needs || k->code != w.m.code || (k->needs & ~cpu) ||
                strcmp(k->recipe, fast[l].recipe) != 0)
                continue;
            product_run(&got, k->fn, noise_below(r, w.m.n_panels + 1));
            bool same = product_same(&want, &got);
            const int64_t one = noise_below(r, n); /* one row alone */
            const int32_t at = want.m.row ? row[one] : (int32_t)one;
            struct kern_matmul alone = got.m;
            alone.row = &at;
            alone.n = 1;
            alone.y = got.m.y + one * got.m.y_stride;
            memset(alone.y, 0x11, (size_t)out * sizeof(float));
            k->fn(&alone, 0, w.m.n_panels);
            same = same && product_same(&want, &got);
            if (!same) {
                printf("%s on %s %lld x %lld, %lld rows differs\n", k->name, quant_info(type)->name,
                       (long long)out, (long long)in, (long long)n);
                bad++;
            }
        }
        mem_free(got.mem);
        mem_free(want.mem);
    }
    if (tiles)
        mem_big_free(tiles, kern_act_tiles_bytes(s.a.kind, n, in));
    mem_free(row);
    acts_free(&s);
    weights_free(&w);
    return bad;
}

static bool is_fast(uint32_t code)
{
    for (size_t i = 0; i < sizeof fast / sizeof *fast; i++)
        if (fast[i].needs && fast[i].code == code)
            return true;
    return false;
}

/* Whether a kernel for many rows has it: they block what the others do not. */
static bool is_many(uint32_t code)
{
    static const uint32_t codes[] = {
#define KERN_MANY(needs, code, fn) KERN_CODE_##code,
#include "kern/many.inc"
#undef KERN_MANY
        KERN_CODE_N};
    for (size_t i = 0; i + 1 < sizeof codes / sizeof *codes; i++)
        if (codes[i] == code)
            return true;
    return false;
}

int check_matmul(uint64_t seed, uint32_t cpu)
{
    struct noise r = {seed};
    int bad = 0;
    for (uint32_t type = 0; type <= FLOATS + QUANT_Q8_0; type++) {
        struct kern_matrix m;
        const struct quant_info *info = quant_info(type % FLOATS);
        if (type >= FLOATS && type < FLOATS + QUANT_Q8_0)
            continue;
        if (!info || matrix_init(&m, type, 1, info->n, NULL) != INGLE_OK)
            continue;
        const int64_t block = info->n == 1 ? 1 : info->n,
                      most = (fence_sparse_trials() ? 600 : 1400) / block + 1;
        bad += check_shape(&r, type, 1 + noise_below(&r, 40), block, 3, cpu);
        for (int i = 0; i < (fence_sparse_trials() ? 1 : 3); i++)
            bad += check_shape(&r, type, 1 + noise_below(&r, i ? 100 : 33),
                               block * (1 + noise_below(&r, most)), 1 + noise_below(&r, i ? 40 : 6),
                               cpu);
        /* three slices or more */
        bad += check_shape(&r, type, 1 + noise_below(&r, 40),
                           block * ((2 * KERN_SLICE) / block + 1 + noise_below(&r, most)),
                           1 + noise_below(&r, 20), cpu);
        if (is_many(m.code)) { /* one or the other: tiles in plain C are slow */
            const bool wide = noise_below(&r, 2);
            bad += check_shape(&r, type, 1 + noise_below(&r, wide ? 300 : 40),
                               256 * (1 + noise_below(&r, 2)),
                               60 + noise_below(&r, wide ? 20 : 230), cpu);
            if (noise_below(&r, 4) == 0) /* more than stand in the order of tiles at a time */
                bad += check_shape(&r, type, 1 + noise_below(&r, 40), 256,
                                   513 + noise_below(&r, 40), cpu);
        }
        const int64_t step = m.act == KERN_ACT_F32 ? 32 : 256;
        for (int i = 0; is_fast(m.code) && i < (fence_sparse_trials() ? 1 : 3); i++)
            bad += check_fast(&r, type, 1 + noise_below(&r, 100),
                              step * (1 + noise_below(&r, 1280 / step)),
                              1 + noise_below(&r, i ? 40 : 6), cpu);
        if (is_fast(m.code))
            bad += check_fast(&r, type, 1 + noise_below(&r, 40),
                              2 * KERN_SLICE + step * (1 + noise_below(&r, 1280 / step)),
                              1 + noise_below(&r, 20), cpu);
        /* more listed rows than are copied at a time */
        if (is_fast(m.code) && !fence_sparse_trials() && noise_below(&r, 8) == 0)
            bad +=
                check_fast(&r, type, 1 + noise_below(&r, 40), step, 257 + noise_below(&r, 40), cpu);
        if (is_fast(m.code)) /* panels side by side */
            bad += check_fast(&r, type, 1 + noise_below(&r, 200), step * 2,
                              65 + noise_below(&r, 20), cpu);
    }
    return bad;
}
