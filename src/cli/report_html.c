/* SPDX-License-Identifier: Apache-2.0 */
/* report_html - a report as one file: tables, and plots as inline SVG; it loads nothing from
 * elsewhere. */
#include "cli/report.h"

#include "base/output.h"
#include "base/mem.h"
#include "base/num.h"

#include <math.h>
#include <string.h>

enum {
    WIDTH = 880, HEIGHT = 220, LEFT = 64, RIGHT = 12, TOP = 12, BOTTOM = 34, /* of a plot, pixels */
    POINTS = 800,   /* of a plot: more are gathered, the largest counts */
    PLACES = 48,    /* at which drafts are made */
    SHOWN = 40,     /* tokens of the table */
    CELL = 14,      /* height of a layer of the map of experts */
};

static void add_text(struct str *s, const char *text, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        const char c = text[i];
        if (c == '<')
            str_adds(s, "&lt;");
        else if (c == '>')
            str_adds(s, "&gt;");
        else if (c == '&')
            str_adds(s, "&amp;");
        else if (c == '"')
            str_adds(s, "&quot;");
        else if (c == '\n')
            str_adds(s, "\xE2\x8F\x8E"); /* a return symbol */
        else if ((unsigned char)c >= 32 && c != 127)
            str_addc(s, c);
    }
}

/* ---- plots ---- */

struct plot {
    const char *title, *x, *y;
    const double *v; /* [n]; what is no number is left out */
    size_t n;
    bool bars;
    double most; /* of the axis; 0: the largest value */
};

static double axis_end(const struct plot *p)
{
    double most = p->most;
    for (size_t i = 0; i < p->n && p->most <= 0; i++)
        if (isfinite(p->v[i]) && p->v[i] > most)
            most = p->v[i];
    return most > 0 ? most : 1;
}

static double x_of(const struct plot *p, double i)
{
    const double span = WIDTH - LEFT - RIGHT;
    return LEFT + (p->n > 1 || p->bars ? i * span / (p->bars ? (double)p->n : (double)(p->n - 1))
                                       : span / 2);
}

static double y_of(double v, double most)
{
    const double share = v / most;
    return HEIGHT - BOTTOM - (share > 1 ? 1 : share < 0 ? 0 : share) * (HEIGHT - TOP - BOTTOM);
}

static void add_axes(struct str *s, const struct plot *p, double most)
{
    for (int i = 0; i <= 4; i++) {
        const double v = most * i / 4, y = y_of(v, most);
        str_addf(s,
                 "<line class=\"g\" x1=\"%d\" x2=\"%d\" y1=\"%.1f\" y2=\"%.1f\"/><text x=\"%d\" "
                 "y=\"%.1f\" text-anchor=\"end\">%.3g</text>",
                 LEFT, WIDTH - RIGHT, y, y, LEFT - 6, y + 4, v);
    }
    const size_t step = p->n > 10 ? (p->n + 9) / 10 : 1;
    for (size_t i = 0; i < p->n; i += step)
        str_addf(s, "<text x=\"%.1f\" y=\"%d\" text-anchor=\"middle\">%zu</text>",
                 x_of(p, (double)i + (p->bars ? 0.5 : 0)), HEIGHT - BOTTOM + 15, i);
    str_addf(s, "<text x=\"%d\" y=\"%d\" text-anchor=\"middle\">", (WIDTH + LEFT) / 2, HEIGHT - 4);
    add_text(s, p->x, strlen(p->x));
    str_adds(s, "</text>");
}

static void add_plot(struct str *s, const struct plot *p)
{
    const double most = axis_end(p);
    str_adds(s, "<h2>");
    add_text(s, p->title, strlen(p->title));
    str_addf(s, "</h2>\n<svg role=\"img\" viewBox=\"0 0 %d %d\"><title>", WIDTH, HEIGHT);
    add_text(s, p->title, strlen(p->title));
    str_adds(s, ": ");
    add_text(s, p->y, strlen(p->y));
    str_adds(s, "</title>");
    add_axes(s, p, most);
    const size_t each = p->n > POINTS ? (p->n + POINTS - 1) / POINTS : 1;
    if (!p->bars)
        str_adds(s, "<polyline points=\"");
    for (size_t i = 0; i < p->n; i += each) {
        double v = (double)NAN;
        for (size_t k = i; k < i + each && k < p->n; k++)
            if (isfinite(p->v[k]) && !(p->v[k] <= v))
                v = p->v[k];
        if (!isfinite(v))
            continue;
        const double x = x_of(p, (double)i), y = y_of(v, most);
        if (p->bars)
            str_addf(s,
                     "<rect x=\"%.1f\" y=\"%.1f\" width=\"%.1f\" height=\"%.1f\"><title>%zu: "
                     "%.4g</title></rect>",
                     x + 1, y,
                     x_of(p, (double)(i + each)) - x - 2 > 0.5 ? x_of(p, (double)(i + each)) - x - 2
                                                               : 0.5,
                     HEIGHT - BOTTOM - y, i, v);
        else
            str_addf(s, "%.1f,%.1f ", x, y);
    }
    str_adds(s, p->bars ? "</svg>\n" : "\"/></svg>\n");
}

static void plot_layers(const struct cli_report *r, struct str *s)
{
    const size_t n = (size_t)r->info.n_layers + 2;
    double *v = mem_calloc(n, sizeof *v);
    for (size_t i = 0; v && i < n; i++)
        v[i] = cli_report_layer_rms(r, (int64_t)i) < 0 ? (double)NAN
                                                       : cli_report_layer_rms(r, (int64_t)i);
    if (v)
        add_plot(s, &(struct plot){"Error by layer",
                                   "0: the embedding, then the layers, then the last norm",
                                   "relative RMS of hidden states", v, n, true, 0});
    mem_free(v);
}

static void plot_tokens(const struct cli_report *r, struct str *s)
{
    double *v = mem_calloc((size_t)r->n, sizeof *v);
    for (int64_t i = 0; v && i < r->n; i++)
        v[i] = (double)(r->logits ? r->token[i].kl : r->token[i].surprise);
    if (v)
        add_plot(s, &(struct plot){r->logits ? "KL by token" : "Surprise by token",
                                   "token of the text",
                                   r->logits ? "KL divergence from the reference, nats"
                                             : "-log p of the next token, nats",
                                   v, (size_t)r->n, false, 0});
    mem_free(v);
}

static void plot_accepted(const struct cli_report *r, struct str *s)
{
    double *v = mem_calloc((size_t)r->n_positions, sizeof *v);
    char x[120];
    snprintf(x, sizeof x, "position in the draft of '%s'; %lld drafts along the text",
             r->info.draft, (long long)r->n_drafts);
    for (int64_t i = 0; v && i < r->n_positions; i++)
        v[i] = (double)r->accepted[i] / (double)r->n_drafts;
    if (v)
        add_plot(s, &(struct plot){"Acceptance", x,
                                   "share of drafts that are the text's tokens up to this one", v,
                                   (size_t)r->n_positions, true, 1});
    mem_free(v);
}

/* A row of cells for each layer; a cell is as dark as its expert was chosen often. */
static void plot_experts(const struct cli_report *r, const struct ingle_engine *e, struct str *s)
{
    const double width = (double)(WIDTH - LEFT - RIGHT) / (double)r->info.n_experts;
    long long n_layers = 0, n_never = 0, row = 0;
    for (int64_t l = 0; l < r->info.n_layers; l++)
        n_layers += ingle_engine_expert_hits(e, l) != NULL;
    str_addf(s,
             "<h2>Expert use</h2>\n<svg role=\"img\" viewBox=\"0 0 %d %lld\"><title>How often each "
             "expert of a layer was chosen</title>",
             WIDTH, n_layers * CELL + BOTTOM);
    for (int64_t l = 0; l < r->info.n_layers; l++) {
        const uint64_t *hits = ingle_engine_expert_hits(e, l);
        uint64_t most = 1;
        for (int64_t i = 0; hits && i < r->info.n_experts; i++)
            most = hits[i] > most ? hits[i] : most;
        if (!hits)
            continue;
        str_addf(s, "<text x=\"%d\" y=\"%lld\" text-anchor=\"end\">%lld</text>", LEFT - 6,
                 row * CELL + CELL - 3, (long long)l);
        for (int64_t i = 0; i < r->info.n_experts; i++) {
            n_never += !hits[i];
            if (hits[i])
                str_addf(s,
                         "<rect x=\"%.1f\" y=\"%lld\" width=\"%.1f\" height=\"%d\" "
                         "opacity=\"%.2f\"><title>layer %lld, expert %lld: %llu</title></rect>",
                         LEFT + (double)i * width, row * CELL, width > 1.5 ? width - 0.5 : width,
                         CELL - 1, 0.1 + 0.9 * (double)hits[i] / (double)most, (long long)l,
                         (long long)i, (unsigned long long)hits[i]);
        }
        row++;
    }
    str_addf(s,
             "<text x=\"%d\" y=\"%lld\" text-anchor=\"middle\">expert; rows are layers; %lld of "
             "%lld were never chosen</text></svg>\n",
             (WIDTH + LEFT) / 2, n_layers * CELL + BOTTOM - 8, n_never,
             n_layers * (long long)r->info.n_experts);
}

/* ---- the page ---- */

static void add_token(const struct cli_report *r, int32_t id, struct str *s)
{
    size_t n = 0;
    const char *text = ingle_token(r->model, id, &n);
    str_adds(s, "<td class=\"t\">");
    if (text)
        add_text(s, text, n);
    str_adds(s, "</td>");
}

static void add_worst(const struct cli_report *r, struct str *s)
{
    int64_t at[SHOWN];
    const size_t n = cli_report_worst(r, at, SHOWN);
    str_addf(s,
             "<h2>%s</h2>\n<table><tr><th>token</th><th>behind</th><th>KL</th><th>-log p of the "
             "next</th><th>there</th>"
             "<th>most probable</th><th>there</th></tr>\n",
             r->logits ? "Tokens farthest from the reference" : "Tokens of most surprise");
    for (size_t i = 0; i < n; i++) {
        const struct cli_report_token *t = &r->token[at[i]];
        str_addf(s, "<tr><td>%lld</td>", (long long)at[i]);
        add_token(r, r->ids[at[i]], s);
        str_addf(s, "<td>%.4g</td><td>%.4g</td><td>%.4g</td>", (double)t->kl, (double)t->surprise,
                 (double)t->reference);
        add_token(r, t->top, s);
        add_token(r, r->logits ? t->reference_top : t->top, s);
        str_adds(s, "</tr>\n");
    }
    str_adds(s, "</table>\n");
}

static void add_summary(const struct cli_report *r, const char *model, struct str *s)
{
    const struct tool_difference *d = &r->difference;
    double surprise = 0;
    for (int64_t i = 0; i + 1 < r->n; i++)
        surprise += (double)r->token[i].surprise;
    str_adds(s, "<h1>");
    add_text(s, model, strlen(model));
    str_addf(s, "</h1>\n<table>\n<tr><td>tokens</td><td>%lld</td></tr>\n", (long long)r->n);
    if (r->n > 1)
        str_addf(s, "<tr><td>mean negative log-likelihood</td><td>%.6g</td></tr>\n",
                 surprise / (double)(r->n - 1));
    if (r->logits) {
        str_adds(s, "<tr><td>reference</td><td>");
        add_text(s, r->against, strlen(r->against));
        str_addf(
            s,
            "</td></tr>\n<tr><td>KL divergence, mean and largest</td><td>%.6g, %.6g</td></tr>\n"
            "<tr><td>same most probable token</td><td>%.2f %%</td></tr>\n<tr><td>relative RMS of "
            "logits</td><td>%.4g</td></tr>\n",
            d->kl_sum / (double)d->n_rows, d->kl_max,
            100.0 * (double)d->n_same_top / (double)d->n_rows, tool_difference_rms(d));
    }
    str_adds(s, "</table>\n");
}

/* Drafts along the text, whose tokens are compared with those that follow. */
static ingle_status make_drafts(struct cli_report *r, struct ingle_engine *e,
                                struct ingle_session *s, struct ingle_error *error)
{
    const int64_t most = r->info.draft_most,
                  last = num_min(r->n - most - 1, r->info.n_ctx - most - 1);
    const int64_t step = last > PLACES ? last / PLACES : 1;
    int32_t *token = mem_calloc((size_t)most, sizeof *token);
    r->accepted = mem_calloc((size_t)most, sizeof *r->accepted);
    ingle_status st = INGLE_OK;
    r->n_positions = most;
    ingle_engine_set_tap(e, NULL, NULL);
    for (int64_t at = 1; token && r->accepted && at <= last && !st; at += step) {
        const float *logits;
        struct ingle_draft draft = {.session = s, .width = most, .token = token};
        st = ingle_session_sync(s, r->ids, at, NULL, error);
        if (!st)
            st = ingle_session_finish(s, &logits, error);
        if (!st)
            st = ingle_session_append(s, &r->ids[at], 1, error);
        if (!st)
            st = ingle_draft(e, &draft, 1, error);
        if (st)
            break;
        r->n_drafts++;
        for (int64_t i = 0; i < draft.n && token[i] == r->ids[at + 1 + i]; i++)
            r->accepted[i]++;
    }
    mem_free(token);
    return st;
}

static const char head[] =
    "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" "
    "content=\"width=device-width\">\n"
    "<title>ingle eval</title>\n<style>\n"
    "body{font:14px/1.45 system-ui,sans-serif;max-width:900px;margin:2em auto;padding:0 "
    "1em;color:#222;background:#fff}\n"
    "h1{font-size:1.3em;overflow-wrap:anywhere}h2{font-size:1.05em;margin:1.6em 0 .3em}\n"
    "table{border-collapse:collapse}td,th{padding:2px 10px 2px 0;text-align:left;border-bottom:1px "
    "solid #ddd}\n"
    ".t{font-family:ui-monospace,monospace;white-space:pre}\n"
    "svg{width:100%;height:auto;font-size:11px}svg "
    "text{fill:#555}rect{fill:#2563a8}polyline{fill:none;stroke:#2563a8;stroke-width:1.2}"
    ".g{stroke:#e3e3e3}\n</style></head><body>\n";

int cli_report_html(struct cli *c, struct cli_report *r, struct ingle_engine *e,
                    struct ingle_session *s, const char *path)
{
    struct str page;
    struct err err;
    struct ingle_error error;
    const char *model = ingle_config_text(c->config, "model", 0);
    /* Experts first: drafts would choose some, too. */
    str_init(&page);
    str_adds(&page, head);
    add_summary(r, model ? model : "the built-in model", &page);
    if (r->has_layers)
        plot_layers(r, &page);
    plot_tokens(r, &page);
    if (r->info.n_experts)
        plot_experts(r, e, &page);
    int rc = CLI_OK;
    if (*r->info.draft && r->info.draft_most > 0 && make_drafts(r, e, s, &error))
        rc = cli_fail(c, &error);
    if (!rc && r->n_drafts)
        plot_accepted(r, &page);
    add_worst(r, &page);
    str_adds(&page, "</body></html>\n");
    if (!rc && (!str_ok(&page) ? err_set(&err, INGLE_NOMEM, "%s: no memory for the report", path)
                               : output_save(&(struct output){.path = path, .kind = OUTPUT_HTML},
                                             page.at, page.n, &err)))
        rc = cli_fail_err(c, &err);
    str_release(&page);
    return rc;
}
