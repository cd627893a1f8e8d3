/* SPDX-License-Identifier: Apache-2.0 */
/* What the process may still do when it reads bytes of a stranger: compute, ask for memory, read
 * and write what is open.  The filter is a program for the kernel, written out here.  Landlock
 * (landlock.c) refuses the same a second time, should the filter have a gap. */
#define _GNU_SOURCE
#include "media/child/child.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>

#ifdef __linux__
#include <linux/audit.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#endif
#if defined(__x86_64__)
#define ARCH AUDIT_ARCH_X86_64
#elif defined(__aarch64__)
#define ARCH AUDIT_ARCH_AARCH64
#endif

static ingle_status limit(int what, rlim_t most, const char *name, struct err *err)
{
    const struct rlimit l = {most, most};
    if (setrlimit((__rlimit_resource_t)what, &l) != 0)
        return err_set(err, INGLE_IO, "the decoder's limit of %s cannot be set: %s", name,
                       strerror(errno));
    return INGLE_OK;
}

#ifdef ARCH
#define LOAD(field)                                                                                \
    BPF_STMT(BPF_LD | BPF_W | BPF_ABS, (uint32_t)offsetof(struct seccomp_data, field))
/* Memory that is never executed: the third argument is the protection. */
#define MEMORY(call)                                                                               \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 4), LOAD(args[2]),                                \
        BPF_JUMP(BPF_JMP | BPF_JSET | BPF_K, PROT_EXEC, 1, 0),                                     \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),                                              \
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS)
#define ALLOW(call)                                                                                \
    BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, call, 0, 1), BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)

static ingle_status filter(struct err *err)
{
    static struct sock_filter code[] = {
        LOAD(arch),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, ARCH, 1, 0),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
        LOAD(nr),
        ALLOW(__NR_read),
        ALLOW(__NR_write),
        ALLOW(__NR_munmap),
        ALLOW(__NR_mremap),
        ALLOW(__NR_brk),
        ALLOW(__NR_madvise),
        ALLOW(__NR_futex),
        ALLOW(__NR_exit),
        ALLOW(__NR_exit_group),
        MEMORY(__NR_mmap),
        MEMORY(__NR_mprotect),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_KILL_PROCESS),
    };
    const struct sock_fprog program = {sizeof code / sizeof *code, code};
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        return err_set(err, INGLE_UNSUP,
                       "the kernel refuses the decoder's filter for system calls: %s",
                       strerror(errno));
    return INGLE_OK;
}
#else
static ingle_status filter(struct err *err)
{
    return err_set(err, INGLE_UNSUP, "there is no filter for system calls on this machine");
}
#endif

ingle_status media_child_confine(uint32_t n_seconds, struct err *err)
{
    ingle_status s = limit(RLIMIT_CPU, n_seconds, "processor time", err);
    if (s == INGLE_OK)
        s = limit(RLIMIT_NOFILE, MEDIA_CHILD_FILES, "open files", err);
    if (s == INGLE_OK)
        s = limit(RLIMIT_CORE, 0, "core files", err);
    if (s == INGLE_OK && prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0)
        s = err_set(err, INGLE_UNSUP, "the decoder cannot give up new privileges: %s",
                    strerror(errno));
    if (s != INGLE_OK || MEDIA_SANITIZED)
        return s;
    s = limit(RLIMIT_AS, MEDIA_CHILD_BYTES, "memory", err);
    if (s == INGLE_OK)
        s = media_child_landlock(err);
    return s == INGLE_OK ? filter(err) : s;
}
