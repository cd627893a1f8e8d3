/* SPDX-License-Identifier: Apache-2.0 */
/* report - how far a model is from a reference, by layer and by token. */
#include "cli/report.h"

#include "base/mem.h"
#include "base/num.h"
#include "base/utf8.h"
#include "base/write.h"
#include "tool/tool.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SHOWN = 20, SPELT = 24 };

const char *cli_report_part(const struct cli_report *r, int64_t part, char name[24])
{
    if (part == 0)
        snprintf(name, 24, "embed");
    else if (part == 1 + r->info.n_layers)
        snprintf(name, 24, "norm");
    else
        snprintf(name, 24, "%lld", (long long)part - 1);
    return name;
}

/* The reference's hidden states, if it has some; a part of them is an error. */
static ingle_status open_layers(struct cli_report *r, struct err *err)
{
    const int64_t n = r->info.n_layers + 2;
    ingle_status st = INGLE_OK;
    r->layer = mem_calloc((size_t)n, sizeof *r->layer);
    if (!r->layer)
        return err_set(err, INGLE_NOMEM, "no memory for %lld layers", (long long)n);
    for (int64_t i = 0; i < n && !st; i++) {
        char part[24], name[40];
        snprintf(name, sizeof name, "hidden.%s", cli_report_part(r, i, part));
        st = tool_matrix_open(&r->layer[i].matrix, r->against, name, err);
        if (st == INGLE_FORMAT) { /* saved without them */
            r->layer[i].matrix = NULL;
            st = INGLE_OK;
        }
        r->has_layers |= r->layer[i].matrix != NULL;
        if (r->layer[i].matrix && tool_matrix_rows(r->layer[i].matrix) < r->n)
            st = err_set(err, INGLE_FORMAT, "%s: '%s' has %lld rows for %lld tokens", r->against,
                         name, (long long)tool_matrix_rows(r->layer[i].matrix), (long long)r->n);
    }
    return st;
}

static bool row_room(struct cli_report *r, int64_t width)
{
    if (width <= r->row_cap)
        return true;
    mem_free(r->row);
    r->row = mem_calloc((size_t)width, sizeof *r->row);
    r->row_cap = r->row ? width : 0;
    return r->row != NULL;
}

ingle_status cli_report_init(struct cli_report *r, const struct ingle_model *m,
                             const struct ingle_engine *e, const char *against, const int32_t *ids,
                             int64_t n, struct err *err)
{
    *r = (struct cli_report){.model = m, .against = against, .ids = ids, .n = n};
    ingle_engine_info(e, &r->info);
    r->token = mem_calloc((size_t)n, sizeof *r->token);
    if (!r->token || !row_room(r, r->info.n_vocab))
        return err_set(err, INGLE_NOMEM, "no memory for the results of %lld tokens", (long long)n);
    if (!against)
        return INGLE_OK;
    ingle_status st = tool_matrix_open(&r->logits, against, "logits", err);
    if (!st && (tool_matrix_rows(r->logits) < n || tool_matrix_width(r->logits) != r->info.n_vocab))
        st =
            err_set(err, INGLE_FORMAT, "%s: 'logits' is [%lld, %lld], not [%lld, %lld]", against,
                    (long long)tool_matrix_rows(r->logits), (long long)tool_matrix_width(r->logits),
                    (long long)n, (long long)r->info.n_vocab);
    return st ? st : open_layers(r, err);
}

void cli_report_release(struct cli_report *r)
{
    for (int64_t i = 0; r->layer && i < r->info.n_layers + 2; i++)
        tool_matrix_close(r->layer[i].matrix);
    mem_free(r->layer);
    tool_matrix_close(r->logits);
    mem_free(r->row);
    mem_free(r->token);
    mem_free(r->accepted);
    *r = (struct cli_report){0};
}

void cli_report_hidden(struct cli_report *r, int64_t part, int64_t at, const float *x, int64_t n,
                       int64_t width, int64_t stride)
{
    struct cli_report_layer *l = r->layer ? &r->layer[part] : NULL;
    char name[24];
    if (!l || !l->matrix || r->status)
        return;
    if (tool_matrix_width(l->matrix) != width)
        r->status = err_set(&r->err, INGLE_FORMAT, "%s: 'hidden.%s' has rows of %lld, not %lld",
                            r->against, cli_report_part(r, part, name),
                            (long long)tool_matrix_width(l->matrix), (long long)width);
    else if (!row_room(r, width))
        r->status = err_set(&r->err, INGLE_NOMEM, "no memory for a row of %lld", (long long)width);
    for (int64_t i = 0; i < n && at + i < r->n && !r->status; i++) {
        r->status = tool_matrix_row(l->matrix, at + i, r->row, &r->err);
        for (int64_t k = 0; k < width && !r->status; k++) {
            const double a = (double)x[i * stride + k], b = (double)r->row[k];
            l->square += (a - b) * (a - b);
            l->total += b * b;
        }
    }
}

double cli_report_layer_rms(const struct cli_report *r, int64_t part)
{
    const struct cli_report_layer *l = &r->layer[part];
    return !l->matrix ? -1 : l->total > 0 ? sqrt(l->square / l->total) : sqrt(l->square);
}

ingle_status cli_report_row(struct cli_report *r, int64_t at, const float *row, struct err *err)
{
    const int64_t v = r->info.n_vocab;
    struct cli_report_token *t = &r->token[at];
    if (r->status) {
        *err = r->err;
        return r->status;
    }
    t->top = (int32_t)tool_top_of(row, v);
    if (at + 1 < r->n)
        t->surprise = (float)tool_surprise(row, v, r->ids[at + 1]);
    if (!r->logits)
        return INGLE_OK;
    const ingle_status st = tool_matrix_row(r->logits, at, r->row, err);
    if (st)
        return st;
    const double before = r->difference.kl_sum;
    tool_difference_add(&r->difference, row, r->row, v);
    t->kl = (float)(r->difference.kl_sum - before);
    t->reference_top = (int32_t)tool_top_of(r->row, v);
    if (at + 1 < r->n)
        t->reference = (float)tool_surprise(r->row, v, r->ids[at + 1]);
    return INGLE_OK;
}

static float badness(const struct cli_report *r, int64_t i)
{
    const float v = r->logits ? r->token[i].kl : r->token[i].surprise;
    return isnan(v) ? INFINITY : v;
}

size_t cli_report_worst(const struct cli_report *r, int64_t *at, size_t n)
{
    size_t k = 0;
    for (int64_t i = 0; i < r->n; i++) {
        size_t place = k;
        while (place > 0 && badness(r, i) > badness(r, at[place - 1]))
            place--;
        if (place == n)
            continue;
        k += k < n;
        for (size_t j = k - 1; j > place; j--)
            at[j] = at[j - 1];
        at[place] = i;
    }
    return k;
}

/* ---- as text ---- */

/* A token between quotes, as a line can show it; what is beyond SPELT bytes is left out. */
static void spell(const struct cli_report *r, int32_t id, char out[SPELT + 8])
{
    size_t n, k = 0;
    const char *s = ingle_token(r->model, id, &n);
    out[k++] = '\'';
    if (s)
        k += utf8_show(s, n, UTF8_LINE, out + k, SPELT);
    out[k++] = '\'';
    out[k] = 0;
}

static int by_size(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;
    return (x > y) - (x < y);
}

/* The mean says little of how errors are spread. */
static void print_quantiles(const struct cli_report *r)
{
    float *kl = mem_calloc((size_t)r->n, sizeof *kl);
    if (!kl)
        return;
    for (int64_t i = 0; i < r->n; i++)
        kl[i] = r->token[i].kl;
    qsort(kl, (size_t)r->n, sizeof *kl, by_size);
    printf("KL by token   median %.3g, 90 %% below %.3g, 99 %% below %.3g, largest %.3g\n",
           (double)kl[r->n / 2], (double)kl[r->n * 9 / 10], (double)kl[r->n * 99 / 100],
           r->difference.kl_max);
    mem_free(kl);
}

static void print_layers(const struct cli_report *r)
{
    char name[24];
    puts("\nlayer    relative RMS of hidden states");
    for (int64_t i = 0; i < r->info.n_layers + 2; i++)
        if (cli_report_layer_rms(r, i) >= 0)
            printf("%-8s %.4g\n", cli_report_part(r, i, name), cli_report_layer_rms(r, i));
}

static void print_tokens(const struct cli_report *r)
{
    int64_t at[SHOWN];
    const size_t n = cli_report_worst(r, at, SHOWN);
    printf("\n%zu tokens %s\n", n,
           r->logits ? "that are farthest from the reference" : "of most surprise");
    printf("%6s  %-24s %-9s %-9s %-9s %-24s %s\n", "token", "behind", "KL", "-log p", "there",
           "most probable", "there");
    for (size_t i = 0; i < n; i++) {
        const struct cli_report_token *t = &r->token[at[i]];
        char id[SPELT + 8], top[SPELT + 8], other[SPELT + 8] = "";
        spell(r, r->ids[at[i]], id);
        spell(r, t->top, top);
        if (r->logits && t->reference_top != t->top)
            spell(r, t->reference_top, other);
        printf("%6lld  %-24s %-9.3g %-9.3g %-9.3g %-24s %s\n", (long long)at[i], id, (double)t->kl,
               (double)t->surprise, (double)t->reference, top, other);
    }
}

void cli_report_text(const struct cli_report *r)
{
    const struct tool_difference *d = &r->difference;
    if (r->logits) {
        printf("against %s\nKL %.6g, same most probable token %.2f %%, relative RMS of logits "
               "%.4g, largest difference %.4g\n",
               r->against, d->kl_sum / (double)d->n_rows,
               100.0 * (double)d->n_same_top / (double)d->n_rows, tool_difference_rms(d),
               d->max_abs);
        print_quantiles(r);
    }
    if (r->has_layers)
        print_layers(r);
    print_tokens(r);
}

/* ---- as JSON ---- */

void cli_report_json(struct str *out, const struct cli_report *r)
{
    const struct tool_difference *d = &r->difference;
    char name[24];
    bool any = false;
    if (!r->logits)
        return;
    write_member_significant(out, "kl", 9, d->kl_sum / (double)d->n_rows);
    write_member_significant(out, "kl_max", 9, d->kl_max);
    write_member_significant(out, "same_top", 9, (double)d->n_same_top / (double)d->n_rows);
    write_member_significant(out, "relative_rms", 9, tool_difference_rms(d));
    write_member_significant(out, "max_abs", 9, d->max_abs);
    for (int64_t i = 0; r->has_layers && i < r->info.n_layers + 2; i++) {
        if (cli_report_layer_rms(r, i) < 0)
            continue;
        if (!any) {
            write_key(out, "layers");
            write_open(out, '{');
        }
        any = true;
        write_member_significant(out, cli_report_part(r, i, name), 6, cli_report_layer_rms(r, i));
    }
    if (any)
        write_close(out, '}');
    write_key(out, "by_token");
    write_open(out, '[');
    for (int64_t i = 0; i < r->n; i++) {
        const struct cli_report_token *t = &r->token[i];
        write_open(out, '{');
        write_member_int(out, "id", r->ids[i]);
        write_member_significant(out, "kl", 6, (double)t->kl);
        write_member_int(out, "top", t->top);
        write_member_int(out, "reference_top", t->reference_top);
        if (i + 1 < r->n) {
            write_member_significant(out, "nll", 6, (double)t->surprise);
            write_member_significant(out, "reference_nll", 6, (double)t->reference);
        }
        write_close(out, '}');
    }
    write_close(out, ']');
}
