/* SPDX-License-Identifier: Apache-2.0 */
/* Tokenizers from arbitrary vocabularies.  The first byte picks: bit 0 the kind, bit 1 all
 * byte tokens in front, bit 2 a tokenizer.json instead.  Then tokens (length, type, bytes),
 * merges (two token indices), and after a 0 length each the text, whose first byte says where
 * specials count.  What holds for every vocabulary: ids are in range, decoding gives the text
 * back when no special was parsed, and a stream gives what decoding gives. */
#include "base/bug.h"
#include "base/mem.h"
#include "base/utf8.h"
#include "text/tokenizer_impl.h"
#include <stdio.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

enum { CAP = 1024 };

struct input {
    const uint8_t *at, *end;
};

struct world {
    const char *token[CAP], *merge[CAP];
    size_t token_bytes[CAP], merge_bytes[CAP], merge_left_bytes[CAP];
    int32_t type[CAP];
    char byte[256][8];
    struct str joined;
};

static unsigned take(struct input *in)
{
    return in->at < in->end ? *in->at++ : 0;
}

static void read_tokens(struct input *in, struct world *w, struct text_vocab *v)
{
    for (unsigned n; v->n_tokens < CAP && (n = take(in)) != 0; v->n_tokens++) {
        const int32_t type = (int32_t)(take(in) % 8);
        if (n > (size_t)(in->end - in->at))
            n = (unsigned)(in->end - in->at);
        w->token[v->n_tokens] = (const char *)in->at;
        w->token_bytes[v->n_tokens] = n;
        w->type[v->n_tokens] = type;
        in->at += n;
    }
}

static void read_merges(struct input *in, struct world *w, struct text_vocab *v)
{
    size_t at = 0;
    for (unsigned code; v->n_tokens && v->n_merges < CAP && (code = take(in)) != 0; v->n_merges++) {
        const size_t left = (take(in) << 2 | (code & 3)) % v->n_tokens;
        const size_t right = (take(in) << 2 | (code >> 2 & 3)) % v->n_tokens;
        str_add(&w->joined, w->token[left], w->token_bytes[left]);
        str_addc(&w->joined, ' ');
        str_add(&w->joined, w->token[right], w->token_bytes[right]);
        w->merge_left_bytes[v->n_merges] = w->token_bytes[left];
        w->merge_bytes[v->n_merges] = w->joined.n - at;
        at = w->joined.n;
    }
    const char *s = w->joined.at;
    for (size_t i = 0; i < v->n_merges; s += w->merge_bytes[i++])
        w->merge[i] = s;
}

static struct tokenizer *create(struct input *in, unsigned mode, struct world *w)
{
    struct tokenizer *t = NULL;
    struct err err;
    if (mode & 4) {
        const char *s = (const char *)in->at;
        const size_t n = (size_t)(in->end - in->at);
        return text_tokenizer_from_json(&t, NULL, s, n, &err) == INGLE_OK ? t : NULL;
    }
    struct text_vocab v = {
        .kind = mode & 1 ? TEXT_DEEPSEEK : TEXT_GEMMA4,
        .token = w->token,
        .token_bytes = w->token_bytes,
        .token_type = w->type,
        .merge = w->merge,
        .merge_bytes = w->merge_bytes,
        .merge_left_bytes = mode & 8 ? NULL : w->merge_left_bytes,
        .bos = (int32_t)take(in) - 1,
        .eos = -1,
        .eot = -1,
        .unk = -1,
        .pad = -1,
        .add_bos = mode & 16,
    };
    for (unsigned b = 0; b < 256 && mode & 2; b++, v.n_tokens++) {
        w->token[b] = w->byte[b];
        w->token_bytes[b] = v.kind == TEXT_DEEPSEEK
                                ? utf8_encode(text_byte_char((unsigned char)b), w->byte[b])
                                : (size_t)snprintf(w->byte[b], sizeof w->byte[b], "<0x%02X>", b);
        w->type[b] = v.kind == TEXT_DEEPSEEK ? TEXT_NORMAL : TEXT_BYTE;
    }
    read_tokens(in, w, &v);
    read_merges(in, w, &v);
    return text_tokenizer_create(&t, &v, &err) == INGLE_OK ? t : NULL;
}

/* The text as decoding gives it: well-formed, and Gemma's mark is a space where it has a token. */
static void normal(struct str *out, const struct tokenizer *t, const char *s, size_t n)
{
    const bool mark =
        text_tokenizer_kind(t) == TEXT_GEMMA4 && text_is_plain(t, text_find(t, "\xE2\x96\x81", 3));
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        const size_t len = utf8_decode(s + i, n - i, &cp);
        if (cp == UTF8_BAD)
            str_adds(out, "\xEF\xBF\xBD");
        else if (cp == 0x2581 && mark)
            str_addc(out, ' ');
        else
            str_add(out, s + i, len);
        i += len;
    }
}

static void check(const struct tokenizer *t, const char *s, size_t n, const struct text_range *r,
                  size_t n_r)
{
    struct text_ids ids = {0};
    struct text_stream held = {0};
    struct str want, all, stream;
    struct err err;
    str_init(&want);
    str_init(&all);
    str_init(&stream);
    BUG_IF(text_encode(t, s, n, false, r, n_r, &ids, &err) != INGLE_OK);
    for (size_t i = 0; i < ids.n; i++) {
        BUG_IF(text_decode(t, ids.id[i], true, &all, &err) != INGLE_OK);
        BUG_IF(text_stream_add(&held, t, ids.id[i], true, &stream, &err) != INGLE_OK);
    }
    text_stream_end(&held, &stream);
    normal(&want, t, s, n);
    if (!n_r)
        BUG_IF(all.n != want.n || memcmp(all.at, want.at, want.n) != 0);
    str_clear(&want);
    for (size_t i = 0; i < all.n;) {
        uint32_t cp;
        const size_t len = utf8_decode(all.at + i, all.n - i, &cp);
        if (cp == UTF8_BAD)
            str_adds(&want, "\xEF\xBF\xBD");
        else
            str_add(&want, all.at + i, len);
        i += len;
    }
    BUG_IF(stream.n != want.n || memcmp(stream.at, want.at, want.n) != 0);
    text_ids_release(&ids);
    str_release(&want);
    str_release(&all);
    str_release(&stream);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct input in = {data, data + size};
    struct world *w = mem_zalloc(sizeof *w);
    if (!w)
        return 0;
    str_init(&w->joined);
    const unsigned mode = take(&in);
    struct tokenizer *t = create(&in, mode, w);
    if (t) {
        const size_t cut = take(&in);
        const char *s = (const char *)in.at;
        const size_t n = (size_t)(in.end - in.at), at = cut < n ? cut : n;
        const struct text_range parts[] = {{0, at / 2}, {at, n}};
        check(t, s, n, NULL, 0);
        check(t, s, n, parts, 2);
    }
    text_tokenizer_free(t);
    str_release(&w->joined);
    mem_free(w);
    return 0;
}
