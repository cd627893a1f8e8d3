/* SPDX-License-Identifier: Apache-2.0 */
/*
 * cut - which layers each process gets: the slowest one is to be as fast as it can be, and of such
 * cuts the one that is fastest in sum.
 *
 * Three exact searches of the same kind, over all ends of all processes: the least time of the
 * slowest; the least sum below it; and, where nothing fits, the least shortage of memory.
 */
#include "stage/stage.h"

#include "base/mem.h"
#include "base/num.h"

#include <float.h>
#include <string.h>

enum goal { GOAL_SLOWEST, GOAL_SUM, GOAL_MEMORY };

struct search {
    const struct stage_cut *c;
    double *memory, *read; /* f64 [n_layers + 1]: of all layers before one */
    double *best[2];       /* f64 [n_layers + 1]: of the processes so far */
    int32_t *before;       /* [n_places][n_layers + 1]: where the last one's layers begin */
    double bound;          /* GOAL_SUM: no process is slower */
};

static double seconds(const struct search *s, int k, int64_t from, int64_t to)
{
    const struct stage_place *p = &s->c->place[k];
    const double rate = p->rate > 0 ? p->rate : 1;
    return (s->read[to] - s->read[from] + (double)p->read_bytes) / rate;
}

static double used(const struct search *s, int k, int64_t from, int64_t to)
{
    const struct stage_place *p = &s->c->place[k];
    const double need = s->memory[to] - s->memory[from] + (double)p->fixed_bytes;
    return need / (p->memory_bytes ? (double)p->memory_bytes : 0.5);
}

/* DBL_MAX: this process cannot have these layers. */
static double cost(const struct search *s, enum goal goal, int k, int64_t from, int64_t to)
{
    const struct stage_place *p = &s->c->place[k];
    if (p->to && (p->from != from || p->to != to))
        return DBL_MAX;
    if (goal == GOAL_MEMORY)
        return used(s, k, from, to);
    const double t = seconds(s, k, from, to);
    if (used(s, k, from, to) > 1 || (goal == GOAL_SUM && t > s->bound * (1 + 1e-12)))
        return DBL_MAX;
    return t;
}

static double join(enum goal goal, double a, double b)
{
    if (a == DBL_MAX || b == DBL_MAX)
        return DBL_MAX;
    return goal == GOAL_SUM ? a + b : a > b ? a : b;
}

/* The least cost of all; ends where there is one. */
static double find(struct search *s, enum goal goal, int64_t *end)
{
    const int64_t n = s->c->n_layers;
    const int n_places = s->c->n_places;
    for (int k = 0; k < n_places; k++) {
        double *now = s->best[k % 2];
        const double *was = s->best[(k + 1) % 2];
        for (int64_t to = 0; to <= n; to++) {
            now[to] = DBL_MAX;
            for (int64_t from = k ? k : 0; from < to; from++) {
                const double before = k ? was[from] : from ? DBL_MAX : 0;
                if (before == DBL_MAX)
                    continue;
                const double v = join(goal, before, cost(s, goal, k, from, to));
                if (v < now[to]) {
                    now[to] = v;
                    s->before[(int64_t)k * (n + 1) + to] = (int32_t)from;
                }
            }
        }
    }
    const double best = s->best[(n_places + 1) % 2][n];
    for (int64_t k = n_places - 1, to = n; best < DBL_MAX && k >= 0; k--) {
        end[k] = to;
        to = s->before[k * (n + 1) + to];
    }
    return best;
}

static ingle_status check(const struct stage_cut *c, struct err *err)
{
    if (c->n_places < 1 || c->n_places > STAGE_MOST + 1)
        return err_set(err, INGLE_ARG, "%d processes are outside 1 to %d", c->n_places,
                       STAGE_MOST + 1);
    if (c->n_layers > STAGE_CUT_LAYERS)
        return err_set(err, INGLE_LIMIT, "%lld layers are more than the %d that can be divided",
                       (long long)c->n_layers, STAGE_CUT_LAYERS);
    if (c->n_layers < c->n_places)
        return err_set(err, INGLE_ARG,
                       "%d processes (the engine and %d stages) are more than the model's %lld "
                       "layers",
                       c->n_places, c->n_places - 1, (long long)c->n_layers);
    return INGLE_OK;
}

ingle_status stage_cut_find(const struct stage_cut *c, int64_t *end, struct err *err)
{
    const ingle_status bad = check(c, err);
    if (bad)
        return bad;
    const size_t n = (size_t)c->n_layers + 1;
    double *room = mem_calloc(4 * n, sizeof *room);
    struct search s = {.c = c,
                       .memory = room,
                       .before = mem_calloc((size_t)c->n_places * n, sizeof *s.before)};
    ingle_status st = INGLE_OK;
    if (!room || !s.before) {
        st = err_set(err, INGLE_NOMEM, "no memory for the cut of %lld layers",
                     (long long)c->n_layers);
    } else {
        s.read = room + n;
        s.best[0] = room + 2 * n;
        s.best[1] = room + 3 * n;
        for (int64_t i = 0; i < c->n_layers; i++) {
            s.memory[i + 1] = s.memory[i] + (double)c->layer[i].memory_bytes;
            s.read[i + 1] = s.read[i] + (double)c->layer[i].read_bytes;
        }
        s.bound = find(&s, GOAL_SLOWEST, end);
        if (s.bound < DBL_MAX)
            (void)find(&s, GOAL_SUM, end);
        else if (find(&s, GOAL_MEMORY, end) < DBL_MAX)
            st = err_set(err, INGLE_LIMIT, "no cut of %lld layers fits into the memory of %d "
                         "processes", (long long)c->n_layers, c->n_places);
        else
            st = err_set(err, INGLE_ARG, "the layers that stages have do not follow each other");
    }
    mem_free(room);
    mem_free(s.before);
    return st;
}

double stage_cut_seconds(const struct stage_cut *c, const int64_t *end)
{
    double most = 0;
    for (int k = 0; k < c->n_places; k++) {
        const struct stage_place *p = &c->place[k];
        double need = (double)p->fixed_bytes, read = (double)p->read_bytes;
        for (int64_t i = k ? end[k - 1] : 0; i < end[k]; i++) {
            need += (double)c->layer[i].memory_bytes;
            read += (double)c->layer[i].read_bytes;
        }
        if (need > (double)p->memory_bytes)
            return -1;
        const double t = read / (p->rate > 0 ? p->rate : 1);
        most = t > most ? t : most;
    }
    return most;
}
