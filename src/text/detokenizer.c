/* SPDX-License-Identifier: Apache-2.0 */
#include "text/tokenizer_impl.h"

#include "base/mem.h"
#include "base/str.h"
#include "base/utf8.h"
#include <string.h>

int text_byte_spelling(const char *s, size_t n)
{
    if (n != 6 || memcmp(s, "<0x", 3) != 0 || s[5] != '>' || str_hex_value(s[3]) < 0 ||
        str_hex_value(s[4]) < 0)
        return -1;
    return str_hex_value(s[3]) << 4 | str_hex_value(s[4]);
}

static void cut(struct str *s, size_t n)
{
    if (s->n > n) {
        s->n = n;
        s->at[n] = 0;
    }
}

/* U+2581 stands for a space. */
static void add_gemma(struct str *out, const char *s, size_t n)
{
    size_t from = 0;
    for (size_t i = 0; i + 3 <= n;) {
        if (memcmp(s + i, "\xE2\x96\x81", 3) != 0) {
            i++;
            continue;
        }
        str_add(out, s + from, i - from);
        str_addc(out, ' ');
        from = i += 3;
    }
    str_add(out, s + from, n - from);
}

/* A token with a character outside the alphabet was never made of bytes: it is shown as it is. */
static void add_deepseek(struct str *out, const char *s, size_t n)
{
    const size_t start = out->n;
    for (size_t i = 0; i < n;) {
        uint32_t cp;
        i += utf8_decode(s + i, n - i, &cp);
        const int byte = text_char_byte(cp);
        if (byte < 0) {
            cut(out, start);
            str_add(out, s, n);
            return;
        }
        str_addc(out, (char)byte);
    }
}

ingle_status text_decode(const struct tokenizer *t, int32_t id, bool show_control, struct str *out,
                         struct err *err)
{
    if (id < 0 || (uint32_t)id >= t->n_tokens)
        return err_set(err, INGLE_ARG, "token %d is not in a vocabulary of %u", id, t->n_tokens);
    const char *s = t->spelling + t->offset[id];
    const size_t n = text_token_bytes(t, id);
    switch ((enum text_token_type)t->type[id]) {
    case TEXT_CONTROL:
    case TEXT_UNKNOWN:
        if (show_control)
            str_add(out, s, n);
        break;
    case TEXT_USER_DEFINED:
        str_add(out, s, n);
        break;
    case TEXT_BYTE:
        str_addc(out, (char)text_byte_spelling(s, n));
        break;
    case TEXT_NORMAL:
    case TEXT_UNUSED:
        if (t->kind == TEXT_GEMMA4)
            add_gemma(out, s, n);
        else
            add_deepseek(out, s, n);
    }
    return str_ok(out) ? INGLE_OK
                       : err_set(err, INGLE_NOMEM, "no memory for the bytes of token %d", id);
}

/* The first two bytes of a surrogate are ill-formed already, but they are judged together
 * with the third, as Python's decoder does. */
static bool surrogate_begins(const char *s, size_t n)
{
    return n == 2 && (unsigned char)s[0] == 0xED && (unsigned char)s[1] >= 0xA0 &&
           (unsigned char)s[1] <= 0xBF;
}

/* Rewrites out from start on so that it is well-formed, and holds back a beginning of a
 * character at the end. */
static void make_valid(struct text_stream *s, struct str *out, size_t start)
{
    struct str raw;
    str_init(&raw);
    str_add(&raw, out->at + start, out->n - start);
    cut(out, start);
    out->failed |= raw.failed;
    for (size_t i = 0; i < raw.n;) {
        uint32_t cp;
        size_t len = utf8_step(raw.at + i, raw.n - i, &cp);
        if (cp == UTF8_PART || surrogate_begins(raw.at + i, raw.n - i)) {
            len = raw.n - i;
            memcpy(s->held, raw.at + i, len);
            s->n_held = len;
        } else if (cp == UTF8_BAD) {
            str_adds(out, "\xEF\xBF\xBD");
        } else {
            str_add(out, raw.at + i, len);
        }
        i += len;
    }
    str_release(&raw);
}

ingle_status text_stream_add(struct text_stream *s, const struct tokenizer *t, int32_t id,
                             bool show_control, struct str *out, struct err *err)
{
    const size_t start = out->n;
    str_add(out, s->held, s->n_held);
    const ingle_status status = text_decode(t, id, show_control, out, err);
    if (status != INGLE_OK) {
        cut(out, start);
        return status;
    }
    s->n_held = 0;
    if (!utf8_valid(out->at + start, out->n - start))
        make_valid(s, out, start);
    return str_ok(out) ? INGLE_OK
                       : err_set(err, INGLE_NOMEM, "no memory for the text of token %d", id);
}

void text_stream_end(struct text_stream *s, struct str *out)
{
    for (size_t i = 0; i < s->n_held;) {
        uint32_t cp;
        i += utf8_decode(s->held + i, s->n_held - i, &cp);
        str_adds(out, "\xEF\xBF\xBD"); /* nothing that is held is a whole character */
    }
    s->n_held = 0;
}
