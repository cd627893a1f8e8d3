/* SPDX-License-Identifier: Apache-2.0 */
/* weight - matrices and vectors on the card. */
#include "device/gpu/card.h"
#include "device/gpu/memory.h"
#include "device/gpu/kernel.h"
#include "quant/quant.h"

void device_set_side(struct device *d, enum device_side side)
{
    d->side = device_card(d) ? side : DEVICE_HOST;
}

void device_matrix_want(struct device_matrix *m, enum device_side side)
{
    m->wanted = device_card(m->d) ? side : DEVICE_HOST;
}

enum device_side device_matrix_wanted(const struct device_matrix *m)
{
    return m->wanted;
}

enum device_side device_matrix_side(const struct device_matrix *m)
{
    return m->card && !m->d->gpu->lost ? DEVICE_CARD : DEVICE_HOST;
}

const uint8_t *device_gpu_weights(const struct device_matrix *m, int64_t index)
{
    if (m->d->gpu->lost)
        return NULL;
    if (m->card)
        return m->card + (size_t)index * m->stack_bytes;
    return m->own ? m->own[index] : NULL;
}

static void stays(const struct device_matrix *m, const char *why)
{
    const struct quant_info *q = quant_info(m->m.type);
    const uint32_t bit = UINT32_C(1) << m->m.code % 32;
    if (m->d->gpu->stays & bit)
        return;
    m->d->gpu->stays |= bit;
    report(m->d->sink, INGLE_REPORT_WARN, "fallback", q ? q->name : "weights",
           "%s: such weights stay with the processor", why);
}

void device_matrix_upload(struct device_matrix *m)
{
    struct device *d = m->d;
    if (m->wanted != DEVICE_CARD || m->card || m->each || !m->m.at || !device_card(d))
        return;
    const char *why = device_card_refuses(d, m);
    if (d->gpu->lost) /* while it was asked; that was said */
        return;
    if (why) {
        stays(m, why);
        return;
    }
    m->card = device_gpu_take(d, m->stack_bytes * (size_t)m->n_stack);
    m->card_scale =
        m->card && m->scale ? device_gpu_take(d, (size_t)m->n_stack * sizeof *m->scale) : NULL;
    if (m->card && (!m->scale || m->card_scale) && device_gpu_put_stack(m))
        return;
    device_gpu_matrix_release(m);
    if (!d->gpu->lost && !d->gpu->is_full) {
        d->gpu->is_full = true;
        report(d->sink, INGLE_REPORT_WARN, "fallback", d->gpu->info.name,
               "%llu of %llu bytes are taken, a matrix of %llu stays with the processor",
               (unsigned long long)d->gpu->used, (unsigned long long)d->gpu->budget,
               (unsigned long long)device_matrix_bytes(m));
    }
}

void device_matrix_stay(struct device_matrix *m)
{
    if (m->card && !m->d->gpu->lost) /* it may be on its way */
        (void)device_gpu_wait(m->d);
    device_gpu_matrix_release(m);
    m->wanted = DEVICE_HOST;
}

void device_gpu_matrix_release(struct device_matrix *m)
{
    if (!m->d->gpu)
        return;
    device_gpu_give(m->d, m->card, m->stack_bytes * (size_t)m->n_stack);
    device_gpu_give(m->d, m->card_scale, (size_t)m->n_stack * sizeof *m->scale);
    m->card = NULL;
    m->card_scale = NULL;
}

/* ---- what only the card has ---- */

void device_matrix_away(struct device_matrix *m, device_home_fn *home, void *arg)
{
    m->away = true;
    m->home = home;
    m->home_arg = arg;
}

void device_matrix_back(struct device_matrix *m)
{
    m->away = false;
}

static bool go_home(struct device *d, const struct device_matrix *m)
{
    struct err e;
    if (!m || !m->away || !m->home(m->home_arg, m, &e))
        return true;
    device_fail(d, &e);
    return false;
}

bool device_gpu_home(struct device *d, enum device_op op, const void *args)
{
    bool ok = true;
    if (op == DEVICE_OP_matmul) {
        const struct device_matmul_args *a = args;
        for (int64_t i = 0; ok && i < a->n; i++)
            ok = !a->p[i].y.n || go_home(d, a->p[i].w);
    } else if (op == DEVICE_OP_mlp) {
        const struct device_mlp *m = ((const struct device_mlp_args *)args)->m;
        ok = go_home(d, m->gate) && go_home(d, m->up) && go_home(d, m->down);
    } else if (op == DEVICE_OP_embed) {
        ok = go_home(d, ((const struct device_embed_args *)args)->m);
    }
    return ok;
}

void device_vector_want(struct device_vector *v, enum device_side side)
{
    v->side = side;
}

void device_gpu_vector_open(struct device_vector *v)
{
    const size_t n_bytes = (size_t)v->n * sizeof *v->at;
    v->side = v->d->side;
    if (!device_card(v->d))
        return;
    v->card = device_gpu_take(v->d, n_bytes);
    if (v->card && device_gpu_put(v->d, v->card, v->at, n_bytes))
        return;
    device_gpu_vector_release(v);
}

void device_gpu_vector_release(struct device_vector *v)
{
    if (v->d->gpu)
        device_gpu_give(v->d, v->card, (size_t)v->n * sizeof *v->at);
    v->card = NULL;
}
