/* SPDX-License-Identifier: Apache-2.0 */
/* How long the prompts are that are measured, and of which tokens. */
#include "cli/bench.h"
#include "cli/cli.h"
#include "cli/input.h"

#include "base/mem.h"
#include "base/num.h"

#include <stdlib.h>
#include <string.h>

enum { LEAST_DEPTH = 2, MOST_DEPTH = 16777216 };

int cli_depths_parse(struct cli *c, struct cli_depths *d)
{
    const char *text;
    for (size_t i = 0; (text = ingle_config_text(c->config, "depth", i)); i++) {
        char *end;
        const long long v = strtoll(text, &end, 10);
        if (i == CLI_MOST_DEPTHS)
            return cli_usage(c, "option '--depth' is given more than %d times", CLI_MOST_DEPTHS);
        if (*end || end == text || v < LEAST_DEPTH || v > MOST_DEPTH)
            return cli_usage(c, "option '--depth' needs a number of %d to %d here, not '%s'",
                             LEAST_DEPTH, MOST_DEPTH, text);
        if (i && v <= d->depth[i - 1])
            return cli_usage(c, "option '--depth': %lld is not above the one before it, %lld", v,
                             (long long)d->depth[i - 1]);
        d->depth[d->n++] = v;
    }
    return CLI_OK;
}

/* d->first, doubled while it is below n, and n. */
static void usual_depths(struct cli_depths *d, int64_t n)
{
    for (int64_t v = d->first; v < n && d->n < CLI_MOST_DEPTHS - 1; v *= 2)
        d->depth[d->n++] = v;
    d->depth[d->n++] = n;
}

int64_t cli_depths_most(const struct cli_depths *d)
{
    return d->n ? d->depth[d->n - 1] : LEAST_DEPTH;
}

static int read_text(struct cli *c, struct ingle_model *model, struct cli_depths *d, int64_t *n_ids)
{
    struct ingle_error error;
    struct err err;
    char *text = NULL;
    int32_t *ids = NULL;
    size_t n_bytes, n = 0;
    if (cli_slurp(d->file, &text, &n_bytes, &err))
        return cli_fail_err(c, &err);
    const ingle_status st =
        ingle_tokenize(model, text, n_bytes, INGLE_ADD_SPECIAL, &ids, &n, &error);
    d->ids = st ? NULL : mem_calloc(n + 1, sizeof *d->ids);
    if (d->ids)
        memcpy(d->ids, ids, n * sizeof *ids);
    mem_free(text);
    ingle_free(ids);
    *n_ids = (int64_t)n;
    return st ? cli_fail(c, &error) : CLI_OK;
}

static bool has_text(const struct ingle_model *model, int32_t id)
{
    char *text = NULL;
    size_t n = 0;
    const bool has = !ingle_detokenize(model, &id, 1, false, &text, &n, NULL) && n > 0;
    ingle_free(text);
    return has;
}

int cli_depths_tokens(struct cli *c, struct ingle_model *model, struct cli_depths *d)
{
    struct ingle_model_info m;
    int64_t n = 0;
    ingle_model_info(model, &m);
    d->file = ingle_config_text(c->config, "text", 0);
    const int rc = d->file ? read_text(c, model, d, &n) : CLI_OK;
    if (rc)
        return rc;
    if (!d->n && (!d->file || n > 1))
        usual_depths(d, d->file ? n : m.n_ctx > 1 ? num_min(m.n_ctx, d->usual) : d->usual);
    const int64_t most = cli_depths_most(d);
    if (d->file && most > n)
        return cli_usage(c, "'%s' has %lld tokens, fewer than the %lld of --depth", d->file,
                         (long long)n, (long long)most);
    if (!d->file && m.n_vocab && (d->ids = mem_calloc((size_t)most, sizeof *d->ids)))
        for (int64_t i = 0, k = 0; i < most; k++) {
            d->ids[i] = (int32_t)((k * 7919 + 13) % m.n_vocab);
            /* no placeholders of pictures and other tokens without a text */
            i += k > 2 * most || has_text(model, d->ids[i]);
        }
    return d->ids ? CLI_OK : cli_usage(c, "no memory for %lld tokens", (long long)most);
}

const char *cli_depths_name(const struct cli_depths *d)
{
    return d->file ? d->file : "tokens without a meaning (--text FILE: your own)";
}
