/* SPDX-License-Identifier: Apache-2.0 */
/*
 * library - a driver's file, before it is opened.
 *
 * The system's loader maps a library by what its header says.  Where a part of the file is missing
 * (a copy that did not end, a full disk), the loader touches pages beyond its end, and the process
 * dies of SIGBUS.
 */
#define _GNU_SOURCE
#include "device/gpu/library.h"

#include "base/mem.h"
#include "base/num.h"
#include <dlfcn.h>
#include <elf.h>
#include <fcntl.h>
#include <link.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MOST_SEGMENTS = 1024 };

static bool read_at(int fd, void *to, size_t n, uint64_t at)
{
    return at <= INT64_MAX && pread(fd, to, n, (off_t)at) == (ssize_t)n;
}

static uint64_t end_of(uint64_t at, uint64_t n)
{
    uint64_t end;
    return num_add_u64(at, n, &end) ? end : UINT64_MAX;
}

ingle_status device_gpu_library_whole(const char *path, struct err *err)
{
    Elf64_Ehdr head;
    struct stat st;
    uint64_t missing = 0;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return INGLE_OK; /* the loader says why */
    const bool known = fstat(fd, &st) == 0 && S_ISREG(st.st_mode) &&
                       read_at(fd, &head, sizeof head, 0) &&
                       memcmp(head.e_ident, ELFMAG, SELFMAG) == 0 &&
                       head.e_ident[EI_CLASS] == ELFCLASS64 &&
                       head.e_phentsize == sizeof(Elf64_Phdr) && head.e_phnum <= MOST_SEGMENTS;
    const uint64_t size = known ? (uint64_t)st.st_size : 0;
    for (uint64_t i = 0; known && !missing && i < head.e_phnum; i++) {
        Elf64_Phdr part;
        uint64_t end = end_of(head.e_phoff, (i + 1) * sizeof part);
        if (end <= size && read_at(fd, &part, sizeof part, end - sizeof part))
            end = end_of(part.p_offset, part.p_filesz);
        missing = end > size ? end : 0;
    }
    close(fd);
    return missing ? err_set(err, INGLE_FORMAT,
                             "'%s' is damaged: it needs %llu bytes but has %llu", path,
                             (unsigned long long)missing, (unsigned long long)size)
                   : INGLE_OK;
}

/* Where the loader looks, and the first of these folders that has the file. */
static ingle_status find_in(const Dl_serinfo *folders, const char *name, struct err *err)
{
    char path[4096];
    for (unsigned i = 0; i < folders->dls_cnt; i++) {
        const int n = snprintf(path, sizeof path, "%s/%s", folders->dls_serpath[i].dls_name, name);
        if (n > 0 && (size_t)n < sizeof path && access(path, R_OK) == 0)
            return device_gpu_library_whole(path, err);
    }
    return INGLE_OK;
}

ingle_status device_gpu_library_check(void *self, const char *name, struct err *err)
{
    Dl_serinfo size, *folders = NULL;
    ingle_status s = INGLE_OK;
    if (self && dlinfo(self, RTLD_DI_SERINFOSIZE, &size) == 0)
        folders = mem_zalloc(size.dls_size);
    if (folders) {
        folders->dls_size = size.dls_size;
        folders->dls_cnt = size.dls_cnt;
        if (dlinfo(self, RTLD_DI_SERINFO, folders) == 0)
            s = find_in(folders, name, err);
    }
    mem_free(folders);
    return s;
}
