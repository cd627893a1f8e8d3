/* SPDX-License-Identifier: Apache-2.0 */
/* api_emu - see api_emu.h. */
#define _GNU_SOURCE
#include "gpu/api_emu.h"

#include "base/mem.h"
#include "device/gpu/api.h"
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum {
    PAGE = 4096,
    POISON = 0xff,
    POISONED = 16 << 20,
    SHARED = 99 << 10,
    MOST_ENTRIES = 4096,
    MOST_TAKEN = 65536
};
enum { BESIDE = 64 << 20 /* room between pieces of memory */ };
enum { CODE_OK, CODE_FAILED = 700, CODE_MEMORY = 2, CODE_LOST = 999, CODE_REFUSED = 218 };

enum kind { PUT, GET, COPY, FILL, LAUNCH, RECORD, AFTER };
struct gpu_event {
    struct gpu_stream *stream; /* that it was recorded in, or NULL */
    uint64_t number;           /* entries of that before it */
};
struct entry {
    enum kind kind;
    void *to;
    const void *from;
    size_t n_bytes;
    int value;
    const struct emu_kernel *kernel;
    struct gpu_grid grid;
    int threads;
    size_t shared;
    struct gpu_event *event;
    uint64_t number;
    struct gpu_stream *other;
    void *args;
};
struct gpu_stream {
    struct entry entry[MOST_ENTRIES];
    size_t n;
    uint64_t done; /* entries that have happened */
};
struct gpu_module { char name[64]; };
struct gpu_function { const struct emu_kernel *kernel; };

struct taken { uint8_t *at; size_t n_bytes; };
struct card {
    bool open;
    int n_open;       /* calls that have opened the memory, one in the other */
    int key;          /* of memory's protection, a thread's; < 0: pages are protected */
    uint8_t *memory;  /* [all bytes]: closed */
    size_t top;       /* bytes from the first one to the end of all that was ever taken */
    size_t n_taken;
    struct taken taken[MOST_TAKEN]; /* by address */
    size_t bytes;     /* that are taken */
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct emu_cards cards = {.n = 1, .bytes = 1u << 30, .capability = 80};
static uint64_t n_calls;
static bool is_lost, is_hung;
static const char *lost_in;
static size_t all_taken, stolen;
static uint64_t n_launches, n_of[1024];
static struct emu_copies copies;

void emu_cards_set(const struct emu_cards *c)
{
    pthread_mutex_lock(&lock);
    cards = *c;
    n_calls = n_launches = 0;
    is_lost = is_hung = false;
    stolen = 0;
    pthread_mutex_unlock(&lock);
}

uint64_t emu_cards_calls(void) { return n_calls; }
struct emu_copies emu_cards_copies(void) { return copies; }
size_t emu_cards_taken(void) { return all_taken; }

uint64_t emu_cards_launches(const char *kernel)
{
    for (int i = 0; kernel && emu_kernel_at(i) && i < 1024; i++)
        if (!strcmp(emu_kernel_at(i)->name, kernel))
            return n_of[i];
    return kernel ? 0 : n_launches;
}

static void bad(const char *what)
{
    fprintf(stderr, "emulated card: %s\n", what);
    abort();
}

/* Whether this call fails, and how. */
static int count_call(const char *function)
{
    if (is_lost)
        return CODE_LOST;
    if (cards.fail_in && strcmp(cards.fail_in, function))
        return CODE_OK;
    n_calls++;
    if (cards.lose_at && n_calls >= cards.lose_at) {
        is_lost = true;
        lost_in = function;
        return CODE_LOST;
    }
    if (cards.fail_at && n_calls == cards.fail_at)
        return cards.memory ? CODE_MEMORY : CODE_FAILED;
    return CODE_OK;
}
#define ENTER(function)                          \
    pthread_mutex_lock(&lock);                   \
    const int refused = count_call(#function);   \
    if (refused) {                               \
        pthread_mutex_unlock(&lock);             \
        return refused;                          \
    }
#define LEAVE(code)                 \
    do {                            \
        const int code_ = (code);   \
        pthread_mutex_unlock(&lock); \
        return code_;               \
    } while (0)

/* ---- memory ---- */

static size_t whole(size_t n) { return (n + PAGE - 1) / PAGE * PAGE; }

/* What is taken is a page away from its neighbours, so that a step beyond its end is a fault where
 * the end is one of a page. */
static size_t room_of(size_t n) { return whole(n) + PAGE; }

/* Only while this thread lets copies and launches happen it has access. */
static int card_open_memory(struct card *c)
{
    c->memory = mmap(NULL, cards.bytes + BESIDE, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (c->memory == MAP_FAILED)
        return CODE_MEMORY;
    c->key = pkey_alloc(0, PKEY_DISABLE_ACCESS);
    if (c->key < 0) /* each copy and launch protects it anew: in large pages that is quick */
        (void)madvise(c->memory, cards.bytes + BESIDE, MADV_HUGEPAGE);
    if (c->key >= 0 &&
        pkey_mprotect(c->memory, cards.bytes + BESIDE, PROT_READ | PROT_WRITE, c->key))
        bad("pkey_mprotect");
    return CODE_OK;
}

static const struct taken *taken_of(const struct card *c, const void *at)
{
    size_t a = 0, b = c->n_taken;
    while (a < b) {
        const size_t m = a + (b - a) / 2;
        if (c->taken[m].at + c->taken[m].n_bytes <= (const uint8_t *)at)
            a = m + 1;
        else
            b = m;
    }
    return a < c->n_taken && c->taken[a].at <= (const uint8_t *)at ? &c->taken[a] : NULL;
}

static void check_card(const struct card *c, const void *at, size_t n_bytes, const char *what)
{
    const struct taken *t = taken_of(c, at);
    if (!t || n_bytes > (size_t)(t->at + t->n_bytes - (const uint8_t *)at))
        bad(what);
}
static void check_host(const struct card *c, const void *at, size_t n_bytes, const char *what)
{
    const uint8_t *p = at;
    if (p + n_bytes > c->memory && p < c->memory + cards.bytes)
        bad(what);
}

/* What was given back is opened, too: entries of a stream may still write there. */
static void set_open(struct card *c, bool open)
{
    c->n_open += open ? 1 : -1;
    if (c->n_open != (open ? 1 : 0))
        return;
    if (c->key >= 0) {
        if (pkey_set(c->key, open ? 0 : PKEY_DISABLE_ACCESS))
            bad("pkey_set");
        return;
    }
    if (c->top && mprotect(c->memory, c->top, open ? PROT_READ | PROT_WRITE : PROT_NONE))
        bad("mprotect");
}

static int on_take(void *self, void **out, size_t n_bytes)
{
    ENTER(take)
    struct card *c = self;
    size_t i = 0;
    uint8_t *at = c->memory;
    /* one card's memory, of all engines; and others take some when it has been asked for */
    if (all_taken + n_bytes > cards.bytes - stolen || c->n_taken == MOST_TAKEN)
        LEAVE(CODE_MEMORY);
    for (; i < c->n_taken && (size_t)(c->taken[i].at - at) < room_of(n_bytes); i++)
        at = c->taken[i].at + room_of(c->taken[i].n_bytes);
    if ((size_t)(at - c->memory) + room_of(n_bytes) > cards.bytes + BESIDE)
        LEAVE(CODE_MEMORY);
    memmove(c->taken + i + 1, c->taken + i, (c->n_taken - i) * sizeof *c->taken);
    c->taken[i] = (struct taken){at, n_bytes};
    c->n_taken++;
    const size_t end = (size_t)(at - c->memory) + whole(n_bytes);
    c->top = end > c->top ? end : c->top;
    c->bytes += n_bytes;
    all_taken += n_bytes;
    set_open(c, true);
    memset(at, POISON, n_bytes < POISONED ? n_bytes : POISONED);
    set_open(c, false);
    *out = at;
    LEAVE(CODE_OK);
}

static int on_give(void *self, void *card, size_t n_bytes)
{
    ENTER(give)
    struct card *c = self;
    const struct taken *t = taken_of(c, card);
    if (!t || t->at != card || t->n_bytes != n_bytes)
        bad("memory is given back that was not taken so");
    const size_t i = (size_t)(t - c->taken);
    if (madvise(t->at, whole(n_bytes), MADV_DONTNEED))
        bad("madvise");
    c->n_taken--;
    memmove(c->taken + i, c->taken + i + 1, (c->n_taken - i) * sizeof *c->taken);
    c->bytes -= n_bytes;
    all_taken -= n_bytes;
    LEAVE(CODE_OK);
}

static int on_host_take(void *self, void **out, size_t n_bytes)
{
    ENTER(host_take)
    (void)self;
    *out = mem_big_alloc(n_bytes);
    LEAVE(*out ? CODE_OK : CODE_MEMORY);
}

static int on_host_give(void *self, void *host, size_t n_bytes)
{
    (void)self; /* also of a card that is lost: the memory is the host's */
    mem_big_free(host, n_bytes);
    return CODE_OK;
}

/* ---- streams ---- */

static void drain(struct card *c, struct gpu_stream *s, uint64_t to);

static void launch(const struct entry *e)
{
    n_launches++;
    for (int i = 0; emu_kernel_at(i) && i < 1024; i++)
        n_of[i] += emu_kernel_at(i) == e->kernel;
    if (!cards.skip || strcmp(cards.skip, e->kernel->name))
        emu_launch_with(e->kernel, e->grid, e->threads, e->shared, e->args, e->n_bytes,
                        cards.order);
}

static void happen(struct card *c, const struct entry *e)
{
    switch (e->kind) {
    case PUT:
    case GET:
    case COPY:
        memmove(e->to, e->from, e->n_bytes);
        return;
    case FILL:
        memset(e->to, e->value, e->n_bytes);
        return;
    case LAUNCH:
        launch(e);
        return;
    case AFTER:
        if (e->other)
            drain(c, e->other, e->number);
        return;
    case RECORD:
        return;
    }
}

/* Entries up to number `to` happen. */
static void drain(struct card *c, struct gpu_stream *s, uint64_t to)
{
    size_t i = 0;
    if (s->done >= to)
        return;
    set_open(c, true);
    for (; i < s->n && s->done < to; i++) {
        is_hung = is_hung || (cards.hang_at && s->entry[i].kind == LAUNCH &&
                              n_launches + 1 >= cards.hang_at);
        if (is_hung)
            break;
        s->done++;
        happen(c, &s->entry[i]);
        mem_free(s->entry[i].args);
    }
    memmove(s->entry, s->entry + i, (s->n - i) * sizeof *s->entry);
    s->n -= i;
    set_open(c, false);
}

static struct entry *add(struct card *c, struct gpu_stream *s, enum kind kind)
{
    if (s->n == MOST_ENTRIES)
        drain(c, s, s->done + s->n);
    struct entry *e = &s->entry[s->n++];
    *e = (struct entry){.kind = kind};
    return e;
}

static int on_stream_make(void *self, struct gpu_stream **out, bool urgent)
{
    ENTER(stream_make)
    (void)self;
    (void)urgent;
    *out = mem_zalloc(sizeof **out);
    LEAVE(*out ? CODE_OK : CODE_MEMORY);
}

static void forget(struct gpu_stream *s)
{
    for (size_t i = 0; i < s->n; i++)
        mem_free(s->entry[i].args);
    s->done += s->n;
    s->n = 0;
}

static int on_stream_free(void *self, struct gpu_stream *s)
{
    pthread_mutex_lock(&lock);
    if (!is_lost)
        drain(self, s, s->done + s->n);
    forget(s);
    mem_free(s);
    LEAVE(CODE_OK);
}

static int on_stream_wait(void *self, struct gpu_stream *s)
{
    ENTER(stream_wait)
    if (is_hung)
        bad("somebody waits for a kernel that does not end");
    drain(self, s, s->done + s->n);
    LEAVE(CODE_OK);
}

static int on_stream_after(void *self, struct gpu_stream *s, struct gpu_event *ev)
{
    ENTER(stream_after)
    struct entry *e = add(self, s, AFTER);
    e->other = ev->stream;
    e->number = ev->number;
    LEAVE(CODE_OK);
}

static int on_event_make(void *self, struct gpu_event **out)
{
    ENTER(event_make)
    (void)self;
    *out = mem_zalloc(sizeof **out);
    LEAVE(*out ? CODE_OK : CODE_MEMORY);
}

static int on_event_free(void *self, struct gpu_event *e)
{
    (void)self;
    mem_free(e);
    return CODE_OK;
}

static int on_event_record(void *self, struct gpu_event *ev, struct gpu_stream *s)
{
    ENTER(event_record)
    (void)add(self, s, RECORD);
    ev->stream = s;
    ev->number = s->done + s->n;
    LEAVE(CODE_OK);
}

static int on_event_ready(void *self, struct gpu_event *ev, bool *ready)
{
    ENTER(event_ready)
    if (ev->stream)
        drain(self, ev->stream, ev->number);
    *ready = !ev->stream || ev->stream->done >= ev->number;
    LEAVE(CODE_OK);
}

static int on_put(void *self, struct gpu_stream *s, void *card, const void *host, size_t n_bytes)
{
    ENTER(put)
    check_card(self, card, n_bytes, "put: the destination is not the card's");
    check_host(self, host, n_bytes, "put: the source is not the host's");
    copies.n_put++;
    copies.put_bytes += n_bytes;
    struct entry *e = add(self, s, PUT);
    e->to = card;
    e->from = host;
    e->n_bytes = n_bytes;
    LEAVE(CODE_OK);
}

static int on_get(void *self, struct gpu_stream *s, void *host, const void *card, size_t n_bytes)
{
    ENTER(get)
    check_card(self, card, n_bytes, "get: the source is not the card's");
    check_host(self, host, n_bytes, "get: the destination is not the host's");
    copies.n_get++;
    copies.get_bytes += n_bytes;
    struct entry *e = add(self, s, GET);
    e->to = host;
    e->from = card;
    e->n_bytes = n_bytes;
    memset(host, POISON, n_bytes);
    LEAVE(CODE_OK);
}

static int on_copy(void *self, struct gpu_stream *s, void *to, const void *from, size_t n_bytes)
{
    ENTER(copy)
    check_card(self, to, n_bytes, "copy: the destination is not the card's");
    check_card(self, from, n_bytes, "copy: the source is not the card's");
    struct entry *e = add(self, s, COPY);
    e->to = to;
    e->from = from;
    e->n_bytes = n_bytes;
    LEAVE(CODE_OK);
}

static int on_fill(void *self, struct gpu_stream *s, void *card, int value, size_t n_bytes)
{
    ENTER(fill)
    check_card(self, card, n_bytes, "fill: the destination is not the card's");
    struct entry *e = add(self, s, FILL);
    e->to = card;
    e->value = value;
    e->n_bytes = n_bytes;
    LEAVE(CODE_OK);
}

/* ---- code ---- */

/* The least compute capability of a module's code. */
static int least_of(const char *module)
{
    static const struct { const char *name; int least; } modules[] = {
#define GPU_MODULE(name, least) {#name, least},
#include "device/gpu/kernels/modules.inc"
#undef GPU_MODULE
    };
    for (size_t i = 0; i < sizeof modules / sizeof *modules; i++)
        if (!strcmp(modules[i].name, module))
            return modules[i].least;
    return 0;
}

static int on_module_load(void *self, const struct gpu_image *image, struct gpu_module **out,
                           char *log, size_t n_log)
{
    ENTER(module_load)
    (void)self;
    if (least_of(image->module) > cards.capability) {
        snprintf(log, n_log, "instructions of newer cards");
        LEAVE(CODE_REFUSED);
    }
    if (cards.refuse || (cards.refuse_in && !strcmp(cards.refuse_in, image->module))) {
        snprintf(log, n_log, "line 1: no");
        LEAVE(CODE_REFUSED);
    }
    *out = mem_zalloc(sizeof **out);
    if (*out)
        snprintf((*out)->name, sizeof(*out)->name, "%s", image->module);
    LEAVE(*out ? CODE_OK : CODE_MEMORY);
}

static int on_module_free(void *self, struct gpu_module *m)
{
    (void)self;
    mem_free(m);
    return CODE_OK;
}

static struct gpu_function functions[1024];

static int on_function(void *self, struct gpu_module *m, const char *name, size_t shared,
                        struct gpu_function **out)
{
    ENTER(function)
    (void)self;
    for (int i = 0; emu_kernel_at(i) && i < 1024; i++) {
        const struct emu_kernel *k = emu_kernel_at(i);
        if (strcmp(k->name, name) || strcmp(k->module, m->name))
            continue;
        if (k->shared_bytes != shared)
            bad("a function with other shared memory than its kernel's");
        functions[i].kernel = k;
        *out = &functions[i];
        LEAVE(CODE_OK);
    }
    LEAVE(CODE_FAILED);
}

static int on_launch(void *self, struct gpu_stream *s, struct gpu_function *f,
                          const struct gpu_launch *l)
{
    ENTER(launch)
    if (l->n_args != f->kernel->n_args)
        bad("a launch with arguments of another kernel");
    if (l->blocks[1] > 65535 || l->blocks[2] > 65535)
        bad("a launch with too many blocks");
    struct entry *e = add(self, s, LAUNCH);
    e->kernel = f->kernel;
    e->grid = (struct gpu_grid){l->blocks[0], l->blocks[1], l->blocks[2]};
    e->threads = l->threads;
    e->shared = l->shared;
    e->n_bytes = l->n_args;
    e->args = mem_alloc(l->n_args);
    if (!e->args)
        bad("no memory");
    memcpy(e->args, l->args, l->n_args);
    LEAVE(CODE_OK);
}

/* ---- cards ---- */

static int on_count(void *self, int *n)
{
    ENTER(count)
    (void)self;
    *n = cards.n;
    LEAVE(CODE_OK);
}

static int on_about(void *self, int card, struct gpu_about *out)
{
    ENTER(about)
    (void)self;
    *out = (struct gpu_about){.driver = 12080,
                              .major = cards.capability / 10,
                              .minor = cards.capability % 10,
                              .n_multi = 1,
                              .shared = SHARED,
                              .bytes = cards.bytes,
                              .free_bytes = cards.bytes,
                              .integrated = cards.integrated};
    snprintf(out->name, sizeof out->name, "emulated card %d", card);
    LEAVE(CODE_OK);
}

static int on_open(void *self, int card)
{
    ENTER(open)
    struct card *c = self;
    (void)card;
    const int code = card_open_memory(c);
    emu_capability(cards.capability);
    c->open = !code;
    LEAVE(code);
}

static void on_close(void *self)
{
    struct card *c = self;
    pthread_mutex_lock(&lock);
    if (c->open)
        munmap(c->memory, cards.bytes + BESIDE);
    if (c->open && c->key >= 0)
        pkey_free(c->key);
    const bool failed = is_lost || (cards.fail_at && n_calls >= cards.fail_at);
    all_taken -= failed ? c->bytes : 0;
    if (!failed && c->n_taken)
        bad("memory of the card was not given back");
    c->open = false;
    pthread_mutex_unlock(&lock);
}

static int on_free_bytes(void *self, uint64_t *out)
{
    ENTER(free_bytes)
    (void)self;
    *out = cards.bytes - all_taken;
    stolen = cards.steal;
    LEAVE(CODE_OK);
}

static const char *on_text(void *self, int code)
{
    (void)self;
    return code == CODE_MEMORY    ? "out of memory"
           : code == CODE_LOST    ? "the device is lost"
           : code == CODE_REFUSED ? "invalid PTX"
                                  : "a failure that was asked for";
}

static enum gpu_fault on_kind(void *self, int code)
{
    (void)self;
    return code == CODE_OK        ? GPU_FAULT_NONE
           : code == CODE_MEMORY  ? GPU_FAULT_MEMORY
           : code == CODE_LOST    ? GPU_FAULT_LOST
           : code == CODE_REFUSED ? GPU_FAULT_REFUSED
                                  : GPU_FAULT_OTHER;
}

static void show_counts(void)
{
    fprintf(stderr, "emulated card: %llu puts of %llu bytes, %llu gets of %llu, %llu launches, "
            "%llu calls%s%s\n",
            (unsigned long long)copies.n_put, (unsigned long long)copies.put_bytes,
            (unsigned long long)copies.n_get, (unsigned long long)copies.get_bytes,
            (unsigned long long)n_launches, (unsigned long long)n_calls,
            lost_in ? ", lost in " : "", lost_in ? lost_in : "");
    for (int i = 0; emu_kernel_at(i) && i < 1024; i++)
        if (n_of[i])
            fprintf(stderr, "%s %llu\n", emu_kernel_at(i)->name, (unsigned long long)n_of[i]);
}

static void on_unload(void *self)
{
    if (cards.count)
        show_counts();
    mem_free(self);
}

/* INGLE_EMU_CARD: n=1,mib=1024,steal=9,capability=80,order=2,fail=7,lose=7,hang=7,integrated,
 * absent,refuse,refuse=MODULE,skip=KERNEL,in=FUNCTION (only its calls count),count */
static void read_environment(void)
{
    static char text[256]; /* names stay there */
    const char *at = getenv("INGLE_EMU_CARD");
    char *rest = text;
    if (!at)
        return;
    snprintf(text, sizeof text, "%s", at);
    for (char *word; (word = strsep(&rest, ","));) {
        char *value = strchr(word, '=');
        const unsigned long long v = value ? strtoull(value + 1, NULL, 0) : 0;
        if (value)
            *value = 0;
        if (!strcmp(word, "n"))
            cards.n = (int)v;
        else if (!strcmp(word, "mib"))
            cards.bytes = (size_t)v << 20;
        else if (!strcmp(word, "steal"))
            cards.steal = (size_t)v << 20;
        else if (!strcmp(word, "capability"))
            cards.capability = (int)v;
        else if (!strcmp(word, "order"))
            cards.order = (enum emu_order)v;
        else if (!strcmp(word, "fail"))
            cards.fail_at = v;
        else if (!strcmp(word, "lose"))
            cards.lose_at = v;
        else if (!strcmp(word, "hang"))
            cards.hang_at = v;
        else if (!strcmp(word, "integrated"))
            cards.integrated = true;
        else if (!strcmp(word, "absent"))
            cards.absent = true;
        else if (!strcmp(word, "refuse") && value)
            cards.refuse_in = value + 1;
        else if (!strcmp(word, "refuse"))
            cards.refuse = true;
        else if (!strcmp(word, "in") && value)
            cards.fail_in = value + 1;
        else if (!strcmp(word, "skip") && value)
            cards.skip = value + 1;
        else if (!strcmp(word, "count"))
            cards.count = true;
        else
            bad("INGLE_EMU_CARD: words are n mib steal capability order fail lose hang "
                "integrated absent refuse skip in count");
    }
}

ingle_status device_gpu_driver(struct gpu_api *out, struct err *err)
{
    static bool is_read;
    if (!is_read)
        read_environment();
    is_read = true;
    if (cards.absent)
        return err_set(err, INGLE_UNSUP, "the emulated driver is not there");
    struct card *c = mem_zalloc(sizeof *c);
    if (!c)
        return err_set(err, INGLE_NOMEM, "no memory for an emulated card");
    *out = (struct gpu_api){.name = "emulator",
                            .has_kernels = true,
                            .self = c,
                            .unload = on_unload,
                            .count = on_count,
                            .about = on_about,
                            .open = on_open,
                            .close = on_close,
                            .free_bytes = on_free_bytes,
                            .take = on_take,
                            .give = on_give,
                            .host_take = on_host_take,
                            .host_give = on_host_give,
                            .stream_make = on_stream_make,
                            .stream_free = on_stream_free,
                            .stream_wait = on_stream_wait,
                            .stream_after = on_stream_after,
                            .event_make = on_event_make,
                            .event_free = on_event_free,
                            .event_record = on_event_record,
                            .event_ready = on_event_ready,
                            .put = on_put,
                            .get = on_get,
                            .copy = on_copy,
                            .fill = on_fill,
                            .module_load = on_module_load,
                            .module_free = on_module_free,
                            .function = on_function,
                            .launch = on_launch,
                            .text = on_text,
                            .kind = on_kind};
    return INGLE_OK;
}
