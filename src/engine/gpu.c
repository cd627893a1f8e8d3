/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gpu - what is on a graphics card.
 *
 * Layers in order, as many as its memory holds or as was requested; with their experts if all of
 * them fit, else those stay with the processor.  What comes after the last layer is where that is.
 * The drafter's layers come after them.
 * Bits are the same wherever a layer is, so all of this is a matter of memory.
 */
#include "base/num.h"
#include "base/size.h"
#include "device/card.h"
#include "engine/draft.h"
#include "engine/engine.h"
#include "engine/plan.h"
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const uint64_t LEAST_BYTES = (uint64_t)1 << 20; /* below, nothing is worth the way */
enum { MOST_CARD = 63, MOST_LAYERS = 1 << 20 };

/* ---- what was requested ---- */

/* DEVICE_CARD_AUTO, 1 + number; 0: none. */
static bool card_of(const char *text, int *out)
{
    char *end;
    if (!text || strcmp(text, "auto") == 0) {
        *out = DEVICE_CARD_AUTO;
        return true;
    }
    *out = 0;
    if (strcmp(text, "off") == 0)
        return true;
    const long n = strtol(text, &end, 10);
    if (*text < '0' || *text > '9' || *end || n > MOST_CARD)
        return false;
    *out = 1 + (int)n;
    return true;
}

/* "0,1", "0-1", "0 1", "all": more than one card. */
static bool is_several(const char *text)
{
    const size_t n = strspn(text, "0123456789");
    return strchr(text, ',') || strcmp(text, "all") == 0 ||
           (n && (text[n] == '-' || text[n] == ' ') && strspn(text + n + 1, "0123456789"));
}

/* What layers a text names: [first, end); plus: or as many as there are. */
struct wish {
    bool automatic, all, plus;
    int64_t first, end;
};

static bool digits(const char **at, int64_t *out)
{
    int64_t n = 0;
    if (**at < '0' || **at > '9')
        return false;
    for (; **at >= '0' && **at <= '9'; ++*at)
        n = num_min(MOST_LAYERS, 10 * n + (**at - '0'));
    *out = n;
    return true;
}

static bool layers_of(const char *text, struct wish *out)
{
    *out = (struct wish){0};
    out->automatic = !text || strcmp(text, "auto") == 0;
    out->all = !out->automatic && strcmp(text, "all") == 0;
    if (out->automatic || out->all)
        return true;
    const char *at = text;
    if (!digits(&at, &out->end))
        return false;
    if (*at == '-') {
        at++;
        out->first = out->end;
        return digits(&at, &out->end) && !*at && out->end >= out->first;
    }
    out->plus = *at == '+';
    return !at[out->plus];
}

static ingle_status check_layers(const char *option, const char *text, struct err *err)
{
    struct wish wish;
    return layers_of(text, &wish)
               ? INGLE_OK
               : err_set(err, INGLE_ARG,
                         "option '--%s' is '%s', none of auto, all, a number from 0 on (12, 12+) "
                         "and a range (8-20)",
                         option, text);
}

ingle_status engine_gpu_check(const char *gpu, const char *layers, const char *draft,
                              uint64_t bytes, struct err *err)
{
    int card;
    if (gpu && is_several(gpu))
        return err_set(err, INGLE_UNSUP,
                       "option '--gpu' is '%s': several cards are not built, one has a number: 0",
                       gpu);
    if (!card_of(gpu, &card))
        return err_set(err, INGLE_ARG,
                       "option '--gpu' is '%s', none of auto, off and the numbers 0 to %d", gpu,
                       MOST_CARD);
    ingle_status st = check_layers("gpu-layers", layers, err);
    if (!st)
        st = check_layers("draft-gpu-layers", draft, err);
    if (st)
        return st;
    if (bytes && bytes < LEAST_BYTES)
        return err_set(err, INGLE_ARG, "option '--gpu-memory' is %llu bytes: the least is %s",
                       (unsigned long long)bytes, SIZE_OF(LEAST_BYTES));
    return INGLE_OK;
}

/* n: of the file; 0: not known yet. */
static ingle_status check_most(const char *option, const struct wish *w, int64_t n,
                               const char *text, const char *path, struct err *err)
{
    return !n || w->plus || w->automatic || w->all || w->end <= n
               ? INGLE_OK
               : err_set(err, INGLE_ARG,
                         "option '--%s' is '%s': the most is %lld, the layers of %s (all)", option,
                         text, (long long)n, path);
}

/* Layers were named, and they are none. */
static bool names_none(const struct wish *w)
{
    return !w->automatic && !w->all && w->first == w->end;
}

/* Layers were named, and they are some. */
static bool names_some(const struct wish *w)
{
    return !w->automatic && !names_none(w);
}

ingle_status engine_gpu_open(struct ingle_engine *e, const struct ingle_engine_options *o,
                             struct err *err)
{
    int card;
    struct wish wish, draft;
    const ingle_status st =
        engine_gpu_check(o->gpu, o->gpu_layers, o->draft_gpu_layers, o->gpu_bytes, err);
    if (st)
        return st;
    (void)card_of(o->gpu, &card);
    (void)layers_of(o->gpu_layers, &wish);
    (void)layers_of(o->draft_gpu_layers, &draft);
    const bool some = names_some(&wish) || names_some(&draft);
    if (!card && some)
        report(&e->sink, INGLE_REPORT_WARN, "fallback", "gpu",
               "--gpu off: the processor computes, whatever --%sgpu-layers says",
               names_some(&wish) ? "" : "draft-");
    const ingle_status many = check_most("gpu-layers", &wish, e->model->n_layers, o->gpu_layers,
                                         e->model->path, err);
    if (many)
        return many;
    e->gpu.requested = card > 0 || (card && some);
    if (!card || (names_none(&wish) && !names_some(&draft)))
        return INGLE_OK;
    /* who wants layers there wants to know why they are not */
    const ingle_status open =
        device_card_open(e->device, e->gpu.requested && card < 0 ? 1 : card, o->gpu_bytes, err);
    if (open == INGLE_ARG)
        err_prefix(err, "option '--gpu'");
    return open;
}

/* ---- the plan ---- */

/* Bytes of pages of layers [first, end), of kv_bytes in all. */
static uint64_t pages_of(const struct kv_spec *s, bool drafter, int64_t first, int64_t end,
                         uint64_t kv_bytes)
{
    double own = 0, all = 0;
    for (uint32_t g = 0; g < s->n_groups; g++)
        all += (double)s->group[g].page_bytes;
    for (uint32_t i = 0; i < s->n_streams; i++) {
        const struct kv_stream *st = &s->stream[i];
        const bool guest = s->n_own && st->group >= s->n_own;
        own += guest == drafter && st->layer >= first && st->layer < end ? (double)st->n_bytes : 0;
    }
    return (uint64_t)(own / all * (double)kv_bytes);
}

struct sum {
    const struct ingle_engine *e;
    const struct kv_spec *spec;
    uint64_t kv_bytes, rows;
    bool experts;
};

/* What layers [first, end) take; head: with what is after the last one. */
static uint64_t bytes_of(const struct sum *s, int64_t first, int64_t end, uint64_t *pages)
{
    const struct model *m = s->e->weights;
    struct family_ends ends = {0};
    uint64_t n = 0;
    *pages = 0;
    for (int64_t i = first; i < end; i++) {
        n += model_layer_bytes(m, i, false) + (s->experts ? model_layer_bytes(m, i, true) : 0);
        *pages += pages_of(s->spec, false, i, i + 1, s->kv_bytes);
    }
    s->e->family->ends(s->e->self, &ends);
    if (end == s->e->info.n_layers && end > first)
        n += model_layer_bytes(m, -1, false) -
             (ends.embed != ends.head ? device_matrix_bytes(ends.embed) : 0);
    return n;
}

/* The most layers [first, end) of at most `end` that fit; end == first: none. */
static int64_t most_of(const struct sum *s, int64_t first, int64_t end, uint64_t limit)
{
    uint64_t pages, n;
    for (; end > first; end--) {
        n = bytes_of(s, first, end, &pages);
        if (n <= limit && pages <= limit - n && s->rows <= limit - n - pages)
            break;
    }
    return end;
}

/* host: experts are read from disk, or computed by workers. */
static void choose(struct engine_gpu *g, struct sum *s, const struct wish *w, int64_t n_layers,
                   bool host)
{
    const int64_t first = w->automatic || w->all ? 0 : w->first,
                  end = w->automatic || w->all ? n_layers : num_min(w->end, n_layers);
    s->experts = !host;
    int64_t got = most_of(s, first, end, g->limit);
    if (got < end && model_expert_bytes(s->e->weights)) {
        s->experts = false;
        got = most_of(s, first, end, g->limit);
    }
    g->first = first;
    g->end = got > first ? got : first;
    g->experts = s->experts;
    g->head = got == n_layers && got > first;
    g->weights = bytes_of(s, first, got, &g->pages);
    g->rows = got > first ? s->rows : 0;
}

/* ---- the drafter ---- */

/* Of a drafter's file; without layers that have numbers it is one. */
static int64_t draft_layers(const struct engine_draft *d)
{
    int64_t n = 0;
    for (int64_t i = model_layer_after(d->weights, -1); i >= 0;
         i = model_layer_after(d->weights, i))
        n++;
    return n ? n : 1;
}

/* The numbers [*from, *to) that layers [first, end) of the file's have; INT64_MAX: with what is of
 * no layer, which goes with the last one. */
static void draft_numbers(const struct engine_draft *d, int64_t first, int64_t end, int64_t *from,
                          int64_t *to)
{
    int64_t i = 0, at = model_layer_after(d->weights, -1);
    *from = 0;
    *to = first < end ? INT64_MAX : 0;
    for (; at >= 0; at = model_layer_after(d->weights, at), i++) {
        *from = first && i == first ? at : *from;
        *to = i == end && first < end ? at : *to;
    }
}

static uint64_t draft_bytes(const struct sum *s, int64_t first, int64_t end, uint64_t *pages)
{
    const struct model *w = s->e->draft->weights;
    int64_t from, to;
    draft_numbers(s->e->draft, first, end, &from, &to);
    uint64_t n = to == INT64_MAX ? model_layer_bytes(w, -1, false) : 0;
    for (int64_t i = model_layer_after(w, from - 1); i >= 0 && i < to; i = model_layer_after(w, i))
        n += model_layer_bytes(w, i, false) + (s->experts ? model_layer_bytes(w, i, true) : 0);
    *pages = pages_of(s->spec, true, from, to, s->kv_bytes);
    return n;
}

/* As most_of(), of what the model's layers leave. */
static int64_t most_of_draft(const struct sum *s, int64_t first, int64_t end, uint64_t limit)
{
    uint64_t pages, n;
    for (; end > first; end--) {
        n = draft_bytes(s, first, end, &pages);
        if (n <= limit && pages <= limit - n && s->rows <= limit - n - pages)
            break;
    }
    return end;
}

/* rows: what steps have for themselves, unless it is counted. */
static void choose_draft(struct engine_gpu *g, struct sum *s, const struct wish *w, uint64_t rows)
{
    const struct model *weights = s->e->draft->weights;
    const int64_t n = g->draft_layers;
    const uint64_t used = g->weights + g->pages + g->rows;
    uint64_t pages;
    g->draft_first = w->automatic || w->all ? 0 : num_min(w->first, n);
    const int64_t end = w->all              ? n
                        : w->automatic      ? (g->head ? n : 0)
                                            : num_min(w->end, n);
    s->rows = g->rows ? 0 : rows;
    s->experts = true;
    g->draft_end = most_of_draft(s, g->draft_first, end, g->limit - used);
    if (g->draft_end < end && model_expert_bytes(weights)) {
        s->experts = false;
        g->draft_end = most_of_draft(s, g->draft_first, end, g->limit - used);
    }
    if (g->draft_end < end && w->automatic) /* all or none */
        g->draft_end = g->draft_first;
    g->draft_end = num_max(g->draft_end, g->draft_first);
    if (g->draft_end == g->draft_first)
        return;
    g->draft_experts = s->experts;
    g->draft_weights = draft_bytes(s, g->draft_first, g->draft_end, &pages);
    g->pages += pages;
    g->rows = rows;
}

static void report_draft(const struct ingle_engine *e, const struct wish *w, const char *card)
{
    const struct engine_gpu *g = &e->gpu;
    const int64_t n = g->draft_layers, have = g->draft_end - g->draft_first,
                  want = w->automatic || w->all ? n : num_min(w->end, n) - g->draft_first;
    const char *experts = model_expert_bytes(e->draft->weights) == 0 ? ""
                          : g->draft_experts                         ? ", with their experts"
                                                : ", experts with the processor";
    if (have && have < want)
        report(&e->sink, INGLE_REPORT_WARN, "gpu", card,
               "layers %lld to %lld of the drafter's %lld fit into what is left of its memory%s",
               (long long)g->draft_first, (long long)g->draft_end - 1, (long long)n, experts);
    else if (have)
        report(&e->sink, INGLE_REPORT_NOTE, "gpu", card,
               "computes layers %lld to %lld of the drafter's %lld%s", (long long)g->draft_first,
               (long long)g->draft_end - 1, (long long)n, experts);
    else if (want > 0 && !w->automatic)
        report(&e->sink, INGLE_REPORT_WARN, "gpu", card,
               "no layer of the drafter fits into what is left of %s of its memory: the processor "
               "computes it",
               SIZE_OF(g->limit));
    else if (want > 0 && g->end > g->first)
        report(&e->sink, INGLE_REPORT_NOTE, "gpu", card, "the processor computes the drafter: %s",
               g->head ? "it does not fit into what is left of the memory"
                       : "the model's last layers are not there (--draft-gpu-layers all)");
}

static void report_card(const struct ingle_engine *e, const struct wish *w, const char *card)
{
    const struct engine_gpu *g = &e->gpu;
    const int64_t all = e->info.n_layers,
                  want = w->automatic || w->all ? all : num_min(w->end, all);
    const char *experts = model_expert_bytes(e->weights) == 0 ? ""
                          : g->experts                        ? ", with their experts"
                                                              : ", experts with the processor";
    if (g->end <= g->first && want > g->first)
        report(&e->sink, e->gpu.requested ? INGLE_REPORT_WARN : INGLE_REPORT_NOTE, "gpu", card,
               "no layer fits into %s of its memory: the processor computes", SIZE_OF(g->limit));
    else if (g->end < want && g->end > g->first)
        report(&e->sink, w->automatic ? INGLE_REPORT_NOTE : INGLE_REPORT_WARN, "gpu", card,
               "layers %lld to %lld of %lld fit into %s of its memory%s: the processor computes "
               "the others",
               (long long)g->first, (long long)g->end - 1, (long long)e->info.n_layers,
               SIZE_OF(g->limit), experts);
    else if (g->end > g->first)
        report(&e->sink, INGLE_REPORT_NOTE, "gpu", card, "computes layers %lld to %lld of %lld%s",
               (long long)g->first, (long long)g->end - 1, (long long)e->info.n_layers, experts);
}

void engine_gpu_fill(const struct ingle_engine *e, struct ingle_plan *out)
{
    const struct engine_gpu *g = &e->gpu;
    const struct device_card_info *card = device_card(e->device);
    if (!card)
        return;
    snprintf(out->gpu, sizeof out->gpu, "%s", card->name);
    out->gpu_first = g->first;
    out->gpu_end = g->end;
    out->gpu_experts = g->experts && model_expert_bytes(e->weights);
    out->gpu_draft_first = g->draft_first;
    out->gpu_draft_end = g->draft_end;
    out->draft_layers = g->draft_layers;
    out->gpu_draft_experts = g->draft_experts && model_expert_bytes(e->draft->weights);
    out->gpu_bytes = g->weights + g->draft_weights + g->pages + g->rows;
    out->gpu_limit_bytes = g->limit;
    out->gpu_shared = card->integrated;
    for (int i = 0; i < out->n_items; i++)
        out->item_gpu_bytes[i] = strcmp(out->item[i].name, "weights") == 0 ? g->weights
                                 : strcmp(out->item[i].name, "drafter") == 0 ? g->draft_weights
                                 : strcmp(out->item[i].name, "keys and values") == 0 ? g->pages
                                 : strcmp(out->item[i].name, "activations") == 0     ? g->rows
                                                                                     : 0;
}

ingle_status engine_gpu_plan(struct ingle_engine *e, const struct ingle_engine_options *o,
                             const struct runner_options *r, uint64_t kv_bytes, uint64_t rows,
                             struct err *err)
{
    const struct device_card_info *card = device_card(e->device);
    struct engine_gpu *g = &e->gpu;
    struct wish wish, draft;
    struct kv_spec spec;
    (void)layers_of(o->gpu_layers, &wish);
    (void)layers_of(o->draft_gpu_layers, &draft);
    const int64_t n = e->info.n_layers, n_draft = e->draft ? draft_layers(e->draft) : 0;
    ingle_status st = check_most("gpu-layers", &wish, n, o->gpu_layers, e->model->path, err);
    if (!st && e->draft)
        st = check_most("draft-gpu-layers", &draft, n_draft, o->draft_gpu_layers, e->draft->path,
                        err);
    if (st)
        return st;
    if (!e->draft && names_some(&draft))
        report(&e->sink, INGLE_REPORT_WARN, "gpu", "--draft-gpu-layers",
               "there is no network that drafts: %s", e->draft_why);
    *g = (struct engine_gpu){.requested = g->requested,
                             .away = g->away,
                             .draft_away = g->draft_away,
                             .draft_layers = n_draft};
    if (!card)
        return INGLE_OK;
    st = session_runner_kv(e->family, e->self, &e->info, r, &spec, err);
    if (st)
        return st;
    struct sum s = {e, &spec, kv_bytes, rows, true};
    g->limit = device_card_left(e->device);
    choose(g, &s, &wish, n, e->expert_budget || o->experts_worker);
    if (e->draft)
        choose_draft(g, &s, &draft, rows);
    /* a store copies pages to memory on their way, and locked pages are there whoever uses them */
    if (kv_bytes && !card->integrated && !o->store && !o->lock)
        g->kv_away = (double)g->pages / (double)kv_bytes;
    kv_spec_release(&spec);
    report_card(e, &wish, card->name);
    if (e->draft)
        report_draft(e, &draft, card->name);
    device_card_idle(e->device, g->end <= g->first && g->draft_end <= g->draft_first);
    return INGLE_OK;
}

/* ---- loading ---- */

static void place_draft(struct ingle_engine *e)
{
    struct model *w = e->draft->weights;
    int64_t from, to;
    engine_gpu_draft(e, &from, &to);
    for (int64_t i = model_layer_after(w, from - 1); i >= 0 && i < to;
         i = model_layer_after(w, i)) {
        model_place(w, i, false, NULL, DEVICE_CARD);
        if (e->gpu.draft_experts)
            model_place(w, i, true, NULL, DEVICE_CARD);
    }
    if (to == INT64_MAX)
        model_place(w, -1, false, NULL, DEVICE_CARD);
}

void engine_gpu_place(struct ingle_engine *e)
{
    const struct engine_gpu *g = &e->gpu;
    struct family_ends ends = {0};
    for (int64_t i = g->first; i < g->end; i++) {
        model_place(e->weights, i, false, NULL, DEVICE_CARD);
        if (g->experts)
            model_place(e->weights, i, true, NULL, DEVICE_CARD);
    }
    e->family->ends(e->self, &ends);
    if (g->head)
        model_place(e->weights, -1, false, ends.embed != ends.head ? ends.embed : NULL,
                    DEVICE_CARD);
    if (g->draft_end > g->draft_first)
        place_draft(e);
}

void engine_gpu_draft(const struct ingle_engine *e, int64_t *first, int64_t *end)
{
    *first = *end = 0;
    if (e->draft)
        draft_numbers(e->draft, e->gpu.draft_first, e->gpu.draft_end, first, end);
}

void engine_gpu_info(const struct ingle_engine *e, struct ingle_engine_info *out)
{
    const struct device_card_info *card = device_card(e->device);
    out->gpu_lost = device_card_lost(e->device);
    if (!card)
        return;
    snprintf(out->gpu, sizeof out->gpu, "%s", card->name);
    out->gpu_first = e->gpu.first;
    out->gpu_end = e->gpu.end;
    out->gpu_experts = e->gpu.experts && e->info.n_experts;
    out->gpu_draft_first = e->gpu.draft_first;
    out->gpu_draft_end = e->gpu.draft_end;
    out->draft_layers = e->gpu.draft_layers;
    out->gpu_bytes =
        model_card_bytes(e->weights) + (e->draft ? model_card_bytes(e->draft->weights) : 0);
}
