/* SPDX-License-Identifier: Apache-2.0 */
/* The emulated card: fibers, and who goes on when. */
#define _GNU_SOURCE
#include "gpu/emu.h"
#include "gpu/api_emu.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* A stack is no multiple of a page, so that stacks share no cache sets. */
enum { STACK = 128 * 1024 + 320, PAGE = 4096, WARPS = EMU_MAX / EMU_WARP };

struct emu {
    struct emu_fiber f[EMU_MAX];
    struct emu_exchange exchange[WARPS][2];
    struct emu_block block;
    const struct emu_kernel *kernel;
    const void *args;
    void *back; /* the scheduler's stack */
    uint8_t *stacks, *memory, *shared;
    size_t n_shared;
    enum emu_order order;
    uint32_t seed;
};

_Thread_local struct emu_fiber *emu_self;
_Thread_local const struct emu_block *emu_block;
static _Thread_local struct emu *emu;
static pthread_key_t key;
static pthread_once_t once = PTHREAD_ONCE_INIT;

void emu_fail(const char *what)
{
    fprintf(stderr, "emu: %s, block %d,%d,%d, thread %d: %s\n", emu->kernel->name,
            emu->block.at[0], emu->block.at[1], emu->block.at[2], emu_self ? emu_self->tid : -1,
            what);
    abort();
}

/* What a call must keep is pushed, the stack changed, and popped; an indirect jump, since a return
 * would be predicted to go back. */
void emu_swap_(void **from, void *to);
#if defined(__x86_64__)
enum { SAVED = 6 };
__asm__(".text\n.globl emu_swap_\n.type emu_swap_,@function\nemu_swap_:\n"
        "push %rbp\npush %rbx\npush %r12\npush %r13\npush %r14\npush %r15\n"
        "mov %rsp,(%rdi)\nmov %rsi,%rsp\n"
        "pop %r15\npop %r14\npop %r13\npop %r12\npop %rbx\npop %rbp\npop %rcx\njmp *%rcx\n"
        ".size emu_swap_,.-emu_swap_\n");
#elif defined(__aarch64__)
enum { SAVED = 19 };
__asm__(".text\n.globl emu_swap_\n.type emu_swap_,%function\nemu_swap_:\n"
        "sub sp,sp,#160\n"
        "stp x19,x20,[sp]\nstp x21,x22,[sp,#16]\nstp x23,x24,[sp,#32]\nstp x25,x26,[sp,#48]\n"
        "stp x27,x28,[sp,#64]\nstp d8,d9,[sp,#80]\nstp d10,d11,[sp,#96]\nstp d12,d13,[sp,#112]\n"
        "stp d14,d15,[sp,#128]\nstp x29,x30,[sp,#144]\n"
        "mov x9,sp\nstr x9,[x0]\nmov sp,x1\n"
        "ldp x19,x20,[sp]\nldp x21,x22,[sp,#16]\nldp x23,x24,[sp,#32]\nldp x25,x26,[sp,#48]\n"
        "ldp x27,x28,[sp,#64]\nldp d8,d9,[sp,#80]\nldp d10,d11,[sp,#96]\nldp d12,d13,[sp,#112]\n"
        "ldp d14,d15,[sp,#128]\nldp x29,x30,[sp,#144]\n"
        "add sp,sp,#160\nbr x30\n"
        ".size emu_swap_,.-emu_swap_\n");
#else
#error "write the switch for this processor"
#endif
__asm__(".section .note.GNU-stack,\"\",%progbits\n.text\n");

void emu_wait(enum emu_state s)
{
    struct emu_fiber *me = emu_self;
    me->state = (uint8_t)s;
    emu_swap_(&me->sp, emu->back);
    emu_self = me;
}

static void fiber_main(void)
{
    emu->kernel->run(emu->args);
    if (emu_self->n_copies)
        emu_fail("copies that nobody waits for");
    emu_wait(EMU_DONE);
    abort();
}

static void fiber_start(struct emu *e, int i)
{
    struct emu_fiber *f = &e->f[i];
    void **sp = (void **)(void *)(e->stacks + (size_t)(i + 1) * STACK);
#if defined(__x86_64__)
    /* Where fiber_main() would return to; it begins with the stack as a call leaves it. */
    *--sp = NULL;
#endif
    *--sp = (void *)(uintptr_t)fiber_main;
    sp -= SAVED;
    memset(sp, 0, SAVED * sizeof *sp);
    f->sp = sp;
    f->tid = i;
    f->state = EMU_READY;
    f->turn = 0;
    f->n_copies = f->group = 0;
}

/* The i-th of n to go on; a seed is kept for all of them. */
static int place(const struct emu *e, uint32_t seed, int i, int n)
{
    if (e->order == EMU_UP)
        return i;
    if (e->order == EMU_DOWN)
        return n - 1 - i;
    if (n & (n - 1))
        return (int)(((uint32_t)i + seed) % (uint32_t)n);
    /* An odd factor: a permutation of 2^k. */
    return (int)(((uint32_t)i * 2654435761u + seed) % (uint32_t)n);
}

static void resume(struct emu *e, struct emu_fiber *f)
{
    emu_self = f;
    emu_swap_(&e->back, f->sp);
    emu_self = NULL;
}

/* Runs a warp until all its threads wait for the block or are done; how many wait. */
static int run_warp(struct emu *e, int w)
{
    for (;;) {
        int at[EMU_DONE + 1] = {0};
        for (int i = 0; i < EMU_WARP; i++) {
            struct emu_fiber *f = &e->f[w * EMU_WARP + place(e, e->seed, i, EMU_WARP)];
            if (f->state == EMU_READY)
                resume(e, f);
            at[f->state]++;
        }
        if (at[EMU_AT_WARP] && at[EMU_AT_WARP] != EMU_WARP)
            emu_fail("an exchange that a part of the warp does not reach");
        if (!at[EMU_AT_WARP]) {
            if (at[EMU_AT_BLOCK] && at[EMU_DONE])
                emu_fail("a barrier that a part of the warp does not reach");
            return at[EMU_AT_BLOCK];
        }
        for (int i = 0; i < EMU_WARP; i++)
            e->f[w * EMU_WARP + i].state = EMU_READY;
        e->seed += 7;
    }
}

static void run_block(struct emu *e, int x, int y, int z)
{
    const int n = e->block.n_threads, n_warps = n / EMU_WARP;
    e->block.at[0] = x, e->block.at[1] = y, e->block.at[2] = z;
    memset(e->shared, 0xff, e->n_shared); /* NaN */
    for (int i = 0; i < n; i++)
        fiber_start(e, i);
    for (int waiting = 1; waiting;) {
        const uint32_t seed = e->seed;
        waiting = 0;
        for (int w = 0; w < n_warps; w++)
            waiting += run_warp(e, place(e, seed, w, n_warps));
        if (waiting && waiting != n)
            emu_fail("a barrier that a part of the block does not reach");
        for (int i = 0; waiting && i < n; i++)
            e->f[i].state = EMU_READY;
        e->seed += 7;
    }
}

static void *map(size_t n_bytes)
{
    void *p = mmap(NULL, n_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) {
        perror("emu: mmap");
        abort();
    }
    return p;
}

enum { MEMORY = (EMU_SHARED + PAGE - 1) / PAGE * PAGE };

static void emu_free(void *p)
{
    struct emu *e = p;
    munmap(e->stacks, (size_t)EMU_MAX * STACK);
    munmap(e->memory, MEMORY + PAGE);
    munmap(e, sizeof *e);
}

static void key_make(void)
{
    if (pthread_key_create(&key, emu_free))
        abort();
}

static struct emu *emu_this(void)
{
    if (!emu) {
        pthread_once(&once, key_make);
        emu = map(sizeof *emu);
        emu->stacks = map((size_t)EMU_MAX * STACK);
        emu->memory = map(MEMORY + PAGE);
        if (mprotect(emu->memory + MEMORY, PAGE, PROT_NONE) || pthread_setspecific(key, emu))
            abort();
    }
    return emu;
}

void emu_launch_with(const struct emu_kernel *k, struct gpu_grid grid, int threads,
                     size_t shared_bytes, const void *args, size_t n_args, enum emu_order order)
{
    struct emu *e = emu_this();
    e->kernel = k;
    e->args = args;
    e->order = order;
    e->block = (struct emu_block){.n_threads = threads, .n = {grid.x, grid.y, grid.z}};
    emu_block = &e->block;
    emu_self = NULL;
    if (n_args != k->n_args || n_args > 4096)
        emu_fail("arguments of another size");
    if (shared_bytes > EMU_SHARED)
        emu_fail("more shared memory than a block has");
    if (threads < EMU_WARP || threads > k->threads || threads % EMU_WARP)
        emu_fail("a block of so many threads");
    if (grid.x < 1 || grid.y < 1 || grid.z < 1 || grid.y > 65535 || grid.z > 65535)
        emu_fail("no such grid");
    /* It ends where nothing can be read. */
    e->n_shared = (shared_bytes + 127) / 128 * 128;
    e->shared = e->memory + MEMORY - e->n_shared;
    const uint32_t seed = e->seed;
    for (int z = 0; z < grid.z; z++)
        for (int y = 0; y < grid.y; y++)
            for (int x = 0; x < grid.x; x++)
                run_block(e, place(e, seed, x, grid.x), place(e, seed, y, grid.y),
                          place(e, seed, z, grid.z));
    emu_block = NULL;
}

void emu_launch(const struct emu_kernel *k, struct gpu_grid grid, const void *args, size_t n_args,
                enum emu_order order)
{
    emu_launch_with(k, grid, k->threads, k->shared_bytes, args, n_args, order);
}

struct emu_exchange *emu_exchange(void)
{
    return &emu->exchange[emu_self->tid / EMU_WARP][emu_self->turn ^= 1];
}

void *emu_shared(size_t n_bytes)
{
    if (n_bytes > emu->n_shared)
        emu_fail("more shared memory than it was launched with");
    return emu->shared;
}

static int capability = 80;

void emu_capability(int c)
{
    capability = c;
}

void emu_copy(void *to, const void *from)
{
    struct emu_fiber *me = emu_self;
    emu_aligned(to, 16);
    emu_aligned(from, 16);
    if (me->n_copies == EMU_COPIES)
        emu_fail("too many copies");
    if ((uint8_t *)to < emu->shared || (uint8_t *)to + 16 > emu->shared + emu->n_shared)
        emu_fail("a copy to other than shared memory");
    if (capability < 80) { /* gpu.h has loads and stores there */
        memcpy(to, from, 16);
        return;
    }
    memset(to, 0xff, 16);
    me->copy[me->n_copies++] = (struct emu_copied){to, from, me->group};
}

void emu_copy_commit(void)
{
    emu_self->group++;
}

void emu_copy_wait(int n)
{
    struct emu_fiber *me = emu_self;
    int left = 0;
    for (int i = 0; i < me->n_copies; i++)
        if (me->copy[i].group < me->group - n)
            memcpy(me->copy[i].to, me->copy[i].from, 16);
        else
            me->copy[left++] = me->copy[i];
    me->n_copies = left;
}
