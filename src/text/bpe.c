/* SPDX-License-Identifier: Apache-2.0 */
/* The merge loop: symbols in a linked list, candidate pairs in a heap.  Each merge removes
 * a symbol and offers at most two new pairs, so n symbols cost O(n log n) whatever they are. */
#include "text/tokenizer_impl.h"

#include "base/mem.h"
#include "base/utf8.h"

#define NONE UINT32_MAX
#define DEAD INT32_MIN

void text_bpe_init(struct text_bpe *b, const struct tokenizer *t)
{
    *b = (struct text_bpe){.t = t, .patience = TEXT_PATIENCE};
}

void text_bpe_release(struct text_bpe *b)
{
    mem_free(b->symbol);
    mem_free(b->heap);
    text_bpe_init(b, b->t);
}

bool text_bpe_may_go_on(struct text_bpe *b)
{
    struct text_bounds *l = b->bounds;
    b->patience = TEXT_PATIENCE;
    if (!l)
        return true;
    if (l->stop && l->stop(l->arg)) {
        b->why = INGLE_CANCEL;
    } else if (l->max_tokens && b->out->n / 2 > l->max_tokens) {
        b->why = INGLE_LIMIT;
        l->least = b->out->n;
    }
    return !b->why;
}

bool text_bpe_add(struct text_bpe *b, int32_t id)
{
    if (!text_bpe_step(b))
        return false;
    if (b->n_symbols == b->cap_symbols &&
        !mem_grow(&b->symbol, &b->cap_symbols, b->n_symbols + 1, sizeof *b->symbol))
        return false;
    b->symbol[b->n_symbols++].id = id;
    return true;
}

static bool heap_push(struct text_bpe *b, uint64_t key)
{
    if (b->n_heap == b->cap_heap &&
        !mem_grow(&b->heap, &b->cap_heap, b->n_heap + 1, sizeof *b->heap))
        return false;
    size_t i = b->n_heap++;
    for (; i && b->heap[(i - 1) / 2] > key; i = (i - 1) / 2, b->n_steps++)
        b->heap[i] = b->heap[(i - 1) / 2];
    b->heap[i] = key;
    return true;
}

static uint64_t heap_pop(struct text_bpe *b)
{
    uint64_t *h = b->heap;
    const uint64_t top = h[0], last = h[--b->n_heap];
    size_t i = 0;
    for (size_t child; (child = 2 * i + 1) < b->n_heap; i = child, b->n_steps++) {
        if (child + 1 < b->n_heap && h[child + 1] < h[child])
            child++;
        if (h[child] >= last)
            break;
        h[i] = h[child];
    }
    h[i] = last;
    return top;
}

/* Offers the pair that begins at symbol i.  The key orders by rank, then from the left. */
static bool offer(struct text_bpe *b, uint32_t i)
{
    const struct text_symbol *s = &b->symbol[i];
    b->n_steps++;
    if (s->next == NONE)
        return true;
    const int64_t rank = text_merge_rank(b->t, s->id, b->symbol[s->next].id);
    return rank < 0 || heap_push(b, (uint64_t)rank << 32 | i);
}

static bool merge_all(struct text_bpe *b)
{
    struct text_symbol *sym = b->symbol;
    while (b->n_heap) {
        const uint64_t key = heap_pop(b);
        const struct text_merge *m = &b->t->merge[key >> 32];
        if (!text_bpe_step(b))
            return false;
        const uint32_t i = (uint32_t)key, dead = sym[i].next;
        /* A pair is stale when one of its symbols was merged meanwhile. */
        if (sym[i].id != m->left || dead == NONE || sym[dead].id != m->right)
            continue;
        sym[i].id = m->result;
        sym[i].next = sym[dead].next;
        sym[dead].id = DEAD;
        if (sym[i].next != NONE)
            sym[sym[i].next].prev = i;
        if (!offer(b, i) || (sym[i].prev != NONE && !offer(b, sym[i].prev)))
            return false;
    }
    return true;
}

static bool emit(const struct tokenizer *t, int32_t id, struct text_ids *out)
{
    if (id >= 0)
        return text_ids_push(out, id);
    char bytes[4];
    const size_t n = utf8_encode((uint32_t)~id, bytes);
    for (size_t i = 0; i < n; i++)
        if (!text_ids_push(out, t->byte_id[(unsigned char)bytes[i]]))
            return false;
    return true;
}

bool text_bpe_finish(struct text_bpe *b, struct text_ids *out)
{
    const uint32_t n = (uint32_t)b->n_symbols;
    bool ok = true;
    b->n_symbols = b->n_heap = 0;
    for (uint32_t i = 0; i < n; i++) {
        b->symbol[i].prev = i ? i - 1 : NONE;
        b->symbol[i].next = i + 1 < n ? i + 1 : NONE;
    }
    for (uint32_t i = 0; ok && i + 1 < n; i++)
        ok = text_bpe_step(b) && offer(b, i);
    ok = ok && merge_all(b);
    for (uint32_t i = 0; ok && i < n; i = b->symbol[i].next)
        ok = emit(b->t, b->symbol[i].id, out);
    return ok;
}

bool text_ids_push(struct text_ids *ids, int32_t id)
{
    if (ids->n == ids->cap && !mem_grow(&ids->id, &ids->cap, ids->n + 1, sizeof *ids->id))
        return false;
    ids->id[ids->n++] = id;
    return true;
}
