/* SPDX-License-Identifier: Apache-2.0
 *
 * The counters of the router and of all loaded models as one text for Prometheus.  A sample of a
 * model gets the label `model`; all samples of a family stand together, as the format demands.
 */
#include "router/inner.h"
#include "router/job.h"
#include "router/parts.h"

#include <string.h>

static void put_label(struct str *out, const char *id)
{
    str_adds(out, "model=\"");
    for (const char *p = id; *p; p++) {
        if (*p == '"' || *p == '\\')
            str_addc(out, '\\');
        str_addc(out, *p == '\n' ? ' ' : *p);
    }
    str_addc(out, '"');
}

/* ---- families ---- */

struct line {
    const char *at;
    size_t n;
};

/* The next line of text [*at, end); false: there is none. */
static bool next_line(const char **at, const char *end, struct line *out)
{
    if (*at >= end)
        return false;
    const char *stop = memchr(*at, '\n', (size_t)(end - *at));
    out->at = *at;
    out->n = (size_t)((stop ? stop : end) - *at);
    *at = stop ? stop + 1 : end;
    return true;
}

static bool begins_family(const struct line *l)
{
    return l->n > 7 && memcmp(l->at, "# HELP ", 7) == 0;
}

static void put_sample(struct str *out, const char *id, const struct line *l)
{
    size_t name = 0;
    while (name < l->n && l->at[name] != '{' && l->at[name] != ' ')
        name++;
    str_add(out, l->at, name);
    str_addc(out, '{');
    put_label(out, id);
    if (name < l->n && l->at[name] == '{') {
        str_addc(out, ',');
        str_add(out, l->at + name + 1, l->n - name - 1);
    } else {
        str_addc(out, '}');
        str_add(out, l->at + name, l->n - name);
    }
    str_addc(out, '\n');
}

/* The samples after *at up to the next family. */
static void put_samples(struct str *out, const char *id, const char **at, const char *end)
{
    struct line l;
    for (const char *p = *at; next_line(&p, end, &l) && !begins_family(&l); *at = p)
        if (l.n && l.at[0] != '#')
            put_sample(out, id, &l);
}

/* After the head of this family in a text; NULL: it has none. */
static const char *find_family(const struct str *text, const struct line *head)
{
    const char *at = text->at, *end = text->at + text->n;
    for (struct line l; next_line(&at, end, &l);)
        if (l.n == head->n && memcmp(l.at, head->at, l.n) == 0)
            return at;
    return NULL;
}

static bool was_before(const struct router_gather *g, size_t i, const struct line *head)
{
    for (size_t k = 0; k < i; k++)
        if (find_family(&g->part[k].text, head))
            return true;
    return false;
}

static void put_all(const struct router_gather *g, struct str *out)
{
    for (size_t i = 0; i < g->n; i++) {
        const char *at = g->part[i].text.at, *end = at + g->part[i].text.n;
        for (struct line head, type; next_line(&at, end, &head);) {
            if (!begins_family(&head) || was_before(g, i, &head))
                continue;
            str_add(out, head.at, head.n);
            str_addc(out, '\n');
            const char *p = at;
            if (next_line(&p, end, &type) && type.n && type.at[0] == '#') {
                str_add(out, type.at, type.n);
                str_addc(out, '\n');
            }
            for (size_t k = i; k < g->n; k++) {
                const char *from = find_family(&g->part[k].text, &head);
                if (from)
                    put_samples(out, g->part[k].id, &from, g->part[k].text.at + g->part[k].text.n);
            }
        }
    }
}

/* ---- the router's own ---- */

enum family { LOADED, STARTS, FAILED, CRASHES, REQUESTS, RUNNING, PLANNED, N_FAMILIES };

static double value_of(const struct router_model *m, enum family f)
{
    switch (f) {
    case LOADED: return m->state == ROUTER_LOADED && !m->child.ended;
    case STARTS: return (double)m->n_starts;
    case FAILED: return (double)m->n_failed_starts;
    case CRASHES: return (double)m->n_crashes;
    case REQUESTS: return (double)m->n_requests;
    case RUNNING: return m->n_active;
    case PLANNED: return (double)m->need_bytes;
    case N_FAMILIES: break;
    }
    return 0;
}

void router_put_metrics(struct router *r, const struct router_gather *g, struct str *out)
{
    static const struct {
        const char *name, *type, *help;
    } family[N_FAMILIES] = {
        [LOADED] = {"ingle_model_loaded", "gauge", "Whether the model is in memory."},
        [STARTS] = {"ingle_model_starts_total", "counter",
                    "Processes that were started for the model."},
        [FAILED] = {"ingle_model_failed_starts_total", "counter", "Starts that failed."},
        [CRASHES] = {"ingle_model_crashes_total", "counter", "Processes that ended by themselves."},
        [REQUESTS] = {"ingle_model_requests_total", "counter", "Requests that the model got."},
        [RUNNING] = {"ingle_model_running", "gauge", "Requests that the model has now."},
        [PLANNED] = {"ingle_model_planned_bytes", "gauge",
                     "Memory that the plan of the loaded model has."},
    };
    struct http_counters n;
    http_counters(r->http, &n);
    str_addf(out,
             "# HELP ingle_router_requests_total Requests for models.\n# TYPE "
             "ingle_router_requests_total counter\n"
             "ingle_router_requests_total %llu\n"
             "# HELP ingle_router_waiting Requests that wait for a model to load.\n# TYPE "
             "ingle_router_waiting gauge\n"
             "ingle_router_waiting %zu\n"
             "# HELP ingle_router_evicted_total Models that left for another one.\n# TYPE "
             "ingle_router_evicted_total counter\n"
             "ingle_router_evicted_total %llu\n"
             "# HELP ingle_router_connections_open Open connections of clients.\n# TYPE "
             "ingle_router_connections_open gauge\n"
             "ingle_router_connections_open %lld\n",
             (unsigned long long)r->n_requests, r->n_waiting, (unsigned long long)r->n_evicted,
             (long long)n.n_open);
    for (int f = 0; f < N_FAMILIES; f++) {
        str_addf(out, "# HELP %s %s\n# TYPE %s %s\n", family[f].name, family[f].help,
                 family[f].name, family[f].type);
        for (const struct router_model *m = r->models; m; m = m->next) {
            if (m->removed)
                continue;
            str_addf(out, "%s{", family[f].name);
            put_label(out, m->id);
            str_addf(out, "} %.17g\n", value_of(m, (enum family)f));
        }
    }
    put_all(g, out);
}
