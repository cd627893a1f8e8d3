/* SPDX-License-Identifier: Apache-2.0 */
/* draft_about - for what models a file drafts, from its headers alone. */
#include "engine/engine.h"

#include "base/str.h"

#include <stdio.h>
#include <string.h>

static const char *const targets[] = {"gemma4", "deepseek4"};

/* Of a file, by tensors and keys; a whole model is no drafter of that kind. */
static const struct family_draft *kind_of(const struct model *w, const struct io_meta *meta)
{
    for (size_t i = 0; i < sizeof targets / sizeof *targets; i++)
        for (const struct family_draft *const *k = family_drafts; *k; k++)
            if (strcmp((*k)->kind, "model") != 0 && (*k)->fits(family_by_arch(targets[i]), w, meta))
                return *k;
    return NULL;
}

/* Names and keys of a checkpoint as a GGUF has them. */
static ingle_status read_checkpoint(const struct ingle_model *m, struct model **w,
                                    struct io_meta *meta, const struct report_sink *sink,
                                    const struct family_draft **kind)
{
    const struct family *plain = family_by_hf_type(m->arch);
    ingle_status st = INGLE_NOTFOUND;
    *kind = family_draft_of(NULL, NULL, NULL, m->config);
    if (*kind && (strcmp((*kind)->kind, "model") == 0 || !(*kind)->config))
        *kind = NULL;
    if (*kind)
        st = (*kind)->config(m->config, meta, sink, NULL);
    else if (plain)
        st = plain->config(m->config, meta, sink, NULL);
    if (!st)
        st = model_create(w, m->file, NULL, *kind ? (*kind)->rename : plain->rename, sink, NULL);
    if (!st && !*kind)
        *kind = kind_of(*w, meta);
    return st;
}

static void write_about(const struct family_draft *k, const struct family_draft_about *a, char *out,
                        size_t n)
{
    struct str s;
    str_init(&s);
    str_addf(&s, "%s for %s", k->kind, a->itself ? "itself" : a->family);
    if (a->n_embd && !a->itself)
        str_addf(&s, ", width %lld", (long long)a->n_embd);
    if (a->n_vocab && !a->itself)
        str_addf(&s, ", %lld tokens", (long long)a->n_vocab);
    if (a->n_layers > 0 && !a->itself)
        str_addf(&s, ", at least %lld layers", (long long)a->n_layers);
    for (int i = 0; i < a->n_taps; i++)
        str_addf(&s, "%s%lld", i ? ", " : " (it reads after layers ", (long long)a->tap[i]);
    str_adds(&s, a->n_taps ? ")" : "");
    snprintf(out, n, "%s", str_ok(&s) ? s.at : k->kind);
    str_release(&s);
}

bool ingle_model_drafts(const struct ingle_model *m, char *out, size_t n)
{
    const struct report_sink silent = {0};
    const struct family_draft *kind = NULL;
    struct family_draft_about about;
    struct model *w = NULL;
    struct io_meta *own = NULL;
    if (!m->file || !io_n_tensors(m->file))
        return false;
    const struct io_meta *meta = io_metadata(m->file);
    ingle_status st;
    if (io_kind(m->file) == IO_GGUF) {
        st = model_create(&w, m->file, NULL, NULL, &silent, NULL);
        kind = st ? NULL : kind_of(w, meta);
    } else {
        meta = own = io_meta_create();
        st = own && m->config ? read_checkpoint(m, &w, own, &silent, &kind) : INGLE_NOTFOUND;
    }
    if (!st && kind) {
        family_draft_describe(kind, w, meta, &about);
        if (m->tokenizer)
            about.n_vocab = (int64_t)engine_n_tokens(m);
        write_about(kind, &about, out, n);
    }
    model_free(w);
    io_meta_free(own);
    return !st && kind;
}
