/* SPDX-License-Identifier: Apache-2.0 */
#include "server/write.h"

void write_drafted(struct str *s, int64_t n_drafted, int64_t n_right)
{
    if (!n_drafted)
        return;
    write_member_int(s, "accepted_prediction_tokens", n_right);
    write_member_int(s, "rejected_prediction_tokens", n_drafted - n_right);
}

void write_facts(struct str *s, const char *group, const void *of)
{
    size_t n;
    const struct ingle_fact *f = ingle_facts(group, &n);
    for (size_t i = 0; i < n; i++) {
        const double v = ingle_fact_number(&f[i], of);
        if (!f[i].key)
            continue;
        write_key(s, f[i].key);
        if (f[i].mean || f[i].kind == INGLE_FACT_NUMBER)
            write_number(s, v);
        else if (f[i].kind == INGLE_FACT_TEXT)
            write_text(s, *ingle_fact_text(&f[i], of) ? ingle_fact_text(&f[i], of) : NULL);
        else if (f[i].kind == INGLE_FACT_FLAG)
            write_bool(s, v > 0);
        else
            write_int(s, (int64_t)(f[i].kind == INGLE_FACT_TIME ? v * 1e3 + 1e-6 : v));
    }
}

void write_ways(struct str *s, const struct ingle_way_use *u)
{
    if (u->sparse.pairs) {
        write_key(s, "sparse");
        write_open(s, '{');
        write_facts(s, "sparse", &u->sparse);
        write_close(s, '}');
    }
    if (u->select.pages_seen) {
        write_key(s, "kv_select");
        write_open(s, '{');
        write_facts(s, "select", &u->select);
        write_close(s, '}');
    }
}

void write_computed(struct str *s, const struct ingle_usage *u)
{
    if (u->n_skipped)
        write_member_int(s, "computed_tokens", u->n_prompt - u->n_skipped);
    if (u->image_tokens)
        write_member_int(s, "image_tokens", u->image_tokens);
    if (u->audio_tokens)
        write_member_int(s, "audio_tokens", u->audio_tokens);
}

void write_pages(struct str *s, const struct ingle_page_use *u)
{
    if (!u->read_bytes)
        return;
    write_key(s, "kv_disk");
    write_open(s, '{');
    write_key(s, "read_bytes");
    write_uint(s, u->read_bytes);
    write_member_number(s, "wait_ms", u->waited_seconds * 1e3);
    write_close(s, '}');
}
