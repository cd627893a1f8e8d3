/* SPDX-License-Identifier: Apache-2.0 */
/* grammar_vocab - the tokens as a trie of their bytes, in preorder. */
#include "grammar/build.h"
#include "grammar/impl.h"
#include "grammar/vocab.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/utf8.h"
#include <stdlib.h>
#include <string.h>

/* Bytes that grammars distinguish have a group of their own. */
#define CONTROL 24
#define SIGN    25
const uint8_t grammar_g_group[256] = {
    ['\t'] = 26,  ['\n'] = 27,  ['\r'] = 28,  [127] = CONTROL,
#define C(i) [i] = CONTROL
    C(0),         C(1),         C(2),         C(3),
    C(4),         C(5),         C(6),         C(7),
    C(8),         C(11),        C(12),        C(14),
    C(15),        C(16),        C(17),        C(18),
    C(19),        C(20),        C(21),        C(22),
    C(23),        C(24),        C(25),        C(26),
    C(27),        C(28),        C(29),        C(30),
    C(31),
#undef C
    [' '] = 0,    ['"'] = 1,    ['\\'] = 2,   ['\''] = 3,
    ['/'] = 4,    ['<'] = 5,    ['>'] = 6,    ['{'] = 7,
    ['}'] = 8,    ['['] = 9,    [']'] = 10,   [':'] = 11,
    [','] = 12,   ['.'] = 13,   ['-'] = 14,   ['_'] = 15,
    ['|'] = 16,   ['('] = 17,   [')'] = 18,   ['+'] = 22,
    ['*'] = 23,   ['!'] = SIGN, ['#'] = SIGN, ['$'] = SIGN,
    ['%'] = SIGN, ['&'] = SIGN, [';'] = SIGN, ['='] = SIGN,
    ['?'] = SIGN, ['@'] = SIGN, ['^'] = SIGN, ['`'] = SIGN,
    ['~'] = SIGN,
#define D(i) [i] = 19
    D('0'),       D('1'),       D('2'),       D('3'),
    D('4'),       D('5'),       D('6'),       D('7'),
    D('8'),       D('9'),
#undef D
#define L(i) [i] = 20, [(i) - 32] = 21
    L('a'),       L('b'),       L('c'),       L('d'),
    L('e'),       L('f'),       L('g'),       L('h'),
    L('i'),       L('j'),       L('k'),       L('l'),
    L('m'),       L('n'),       L('o'),       L('p'),
    L('q'),       L('r'),       L('s'),       L('t'),
    L('u'),       L('v'),       L('w'),       L('x'),
    L('y'),       L('z'),
#undef L
};

struct entry {
    const char *at;
    uint32_t n;
    int32_t id;
};

static int by_bytes(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    const int c = memcmp(x->at, y->at, x->n < y->n ? x->n : y->n);
    if (c)
        return c;
    if (x->n != y->n)
        return x->n < y->n ? -1 : 1;
    return x->id < y->id ? -1 : 1;
}

/* groups[i]: of the characters from i on, and PART where i is inside of one.  A part is
 * taken from the back: an ill-formed text may be cut differently, which costs time alone. */
static void suffix_groups(const char *s, size_t n, uint32_t *groups)
{
    uint32_t below = 0;
    for (size_t end = n; end > 0;) {
        size_t begin = end - 1;
        while (begin > 0 && ((unsigned char)s[begin] & 0xC0) == 0x80)
            begin--;
        uint32_t cp;
        uint32_t own;
        if (utf8_decode(s + begin, end - begin, &cp) != end - begin || cp == UTF8_BAD)
            own = (uint32_t)1 << GRAMMAR_GROUP_PART;
        else
            own = (uint32_t)1 << (cp < 0x80 ? grammar_g_group[cp] : GRAMMAR_GROUP_UTF8);
        below |= own;
        groups[begin] = below;
        for (size_t k = begin + 1; k < end; k++)
            groups[k] = below | (uint32_t)1 << GRAMMAR_GROUP_PART;
        end = begin;
    }
}

/* entry [n], sorted. */
static bool build_trie(struct grammar_trie *t, const struct entry *entry, size_t n)
{
    uint32_t *path = NULL, *groups = NULL;
    size_t cap = 0, max = 0, depth = 0;
    for (size_t i = 0; i < n; i++)
        max = entry[i].n > max ? entry[i].n : max;
    t->max_bytes = (uint32_t)max;
    t->id = mem_calloc(n + 1, sizeof *t->id);
    path = mem_calloc(max + 1, sizeof *path);
    groups = mem_calloc(max + 1, sizeof *groups);
    bool ok = t->id && path && groups && mem_grow(&t->node, &cap, 1, sizeof *t->node);
    for (size_t i = 0; ok && i < n; i++) {
        const struct entry *e = &entry[i];
        size_t same = 0;
        while (i && same < e->n && same < depth && t->node[path[same]].byte == (uint8_t)e->at[same])
            same++;
        while (depth > same) {
            depth--;
            t->node[path[depth]].skip = t->n_nodes - path[depth];
        }
        suffix_groups(e->at, e->n, groups);
        for (size_t k = 0; k < depth; k++)
            t->node[path[k]].groups |= groups[k];
        ok = mem_grow(&t->node, &cap, t->n_nodes + e->n + 1, sizeof *t->node);
        for (; ok && depth < e->n; depth++) {
            path[depth] = t->n_nodes;
            t->node[t->n_nodes++] = (struct grammar_trie_node){
                .token = (uint32_t)i, .groups = groups[depth], .byte = (uint8_t)e->at[depth]};
        }
        t->id[i] = e->id;
    }
    while (ok && depth > 0) {
        depth--;
        t->node[path[depth]].skip = t->n_nodes - path[depth];
    }
    t->n_tokens = (uint32_t)n;
    if (ok)
        t->node[t->n_nodes] = (struct grammar_trie_node){.token = (uint32_t)n};
    mem_free(path);
    mem_free(groups);
    return ok;
}

/* The bytes of the tokens that stand for text. */
static ingle_status read_tokens(struct grammar_vocab *v, const struct tokenizer *t,
                                struct err *err)
{
    struct str all;
    ingle_status st = INGLE_OK;
    const int64_t n = num_min(v->n_vocab, (int64_t)text_n_tokens(t));
    str_init(&all);
    for (int64_t id = 0; id < v->n_vocab && !st; id++) {
        v->offset[id] = (uint32_t)all.n;
        if (id >= n || text_is_end(t, (int32_t)id))
            continue;
        const enum text_token_type type = text_token_type(t, (int32_t)id);
        if (type == TEXT_NORMAL || type == TEXT_BYTE)
            st = text_decode(t, (int32_t)id, false, &all, err);
        if (!st && all.n > UINT32_MAX / 2)
            st = err_set(err, INGLE_LIMIT,
                         "the vocabulary's text is longer than the limit of 2 GiB");
    }
    v->offset[v->n_vocab] = (uint32_t)all.n;
    if (!st && !(v->bytes = str_detach(&all)))
        st = err_set(err, INGLE_NOMEM, "no memory for a vocabulary's text");
    str_release(&all);
    return st;
}

static bool build_tries(struct grammar_vocab *v)
{
    struct entry *entry = mem_calloc((size_t)v->n_vocab + 1, sizeof *entry);
    bool ok = entry != NULL;
    for (int k = 0; ok && k < GRAMMAR_N_TRIES; k++) {
        size_t n = 0;
        for (int32_t id = 0; id < v->n_vocab; id++) {
            const uint32_t n_bytes = v->offset[id + 1] - v->offset[id];
            if (n_bytes && (n_bytes > GRAMMAR_SHORT_BYTES) == (k > 0))
                entry[n++] = (struct entry){v->bytes + v->offset[id], n_bytes, id};
        }
        qsort(entry, n, sizeof *entry, by_bytes);
        ok = build_trie(&v->trie[k], entry, n);
    }
    mem_free(entry);
    return ok;
}

ingle_status grammar_vocab_create(struct grammar_vocab **out, const struct tokenizer *t,
                                       int64_t n_vocab, const int32_t *end, size_t n_end,
                                       struct err *err)
{
    ingle_status st = INGLE_OK;
    struct grammar_vocab *v = mem_zalloc(sizeof *v);
    if (!v)
        return err_set(err, INGLE_NOMEM, "no memory for a vocabulary");
    v->n_vocab = n_vocab;
    v->n_words = ((size_t)n_vocab + 63) / 64;
    v->offset = mem_calloc((size_t)n_vocab + 1, sizeof *v->offset);
    v->end = mem_calloc(n_end + 1, sizeof *v->end);
    if (!v->offset || !v->end)
        st = err_set(err, INGLE_NOMEM, "no memory for a vocabulary of %lld tokens",
                     (long long)n_vocab);
    for (size_t i = 0; !st && i < n_end; i++)
        if (end[i] >= 0 && end[i] < n_vocab)
            v->end[v->n_end++] = end[i];
    if (!st)
        st = read_tokens(v, t, err);
    if (!st && !build_tries(v))
        st = err_set(err, INGLE_NOMEM, "no memory for a trie of %lld tokens", (long long)n_vocab);
    if (st)
        grammar_vocab_free(v);
    else
        *out = v;
    return st;
}

void grammar_vocab_free(struct grammar_vocab *v)
{
    if (!v)
        return;
    for (int k = 0; k < GRAMMAR_N_TRIES; k++) {
        mem_free(v->trie[k].node);
        mem_free(v->trie[k].id);
    }
    mem_free(v->offset);
    mem_free(v->bytes);
    mem_free(v->end);
    mem_free(v);
}

/* Tokens on the way of the bytes through a trie, and whether tokens go on after its end; those
 * beyond the second do not count. */
static uint32_t on_the_way(const struct grammar_trie *t, const char *bytes, size_t n, bool open)
{
    uint32_t at = 0, end = t->n_nodes, found = 0;
    for (size_t i = 0; i < n && found < 2; i++) {
        while (at < end && t->node[at].byte != (uint8_t)bytes[i])
            at += t->node[at].skip;
        if (at >= end)
            return found;
        found += t->node[at + 1].token - t->node[at].token;
        end = at + t->node[at].skip;
        at++;
    }
    return found + (open && at < end);
}

bool grammar_vocab_single(const struct grammar_vocab *v, const char *bytes, size_t n, bool open)
{
    uint32_t found = 0;
    for (int k = 0; k < GRAMMAR_N_TRIES; k++)
        found += on_the_way(&v->trie[k], bytes, n, open);
    return found == 1;
}

size_t grammar_vocab_bytes(const struct grammar_vocab *v, int32_t token)
{
    return token < 0 || token >= v->n_vocab ? 0 : v->offset[token + 1] - v->offset[token];
}
