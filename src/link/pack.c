/* SPDX-License-Identifier: Apache-2.0 */
#include "link/pack.h"

#include "base/mem.h"

#include <string.h>

void link_pack_release(struct link_pack *p)
{
    mem_free(p->at);
    *p = (struct link_pack){0};
}

static void add(struct link_pack *p, const void *bytes, size_t n)
{
    if (p->failed || !mem_grow(&p->at, &p->cap, p->n + n, 1)) {
        p->failed = true;
        return;
    }
    memcpy(p->at + p->n, bytes, n);
    p->n += n;
}

/* A head, and the last n bytes of v, the most significant one first. */
static void add_number(struct link_pack *p, uint8_t head, uint64_t v, int n)
{
    uint8_t bytes[9] = {head};
    for (int i = 0; i < n; i++)
        bytes[1 + i] = (uint8_t)(v >> 8 * (n - 1 - i));
    add(p, bytes, 1 + (size_t)n);
}

void link_pack_nil(struct link_pack *p) { add_number(p, 0xC0, 0, 0); }

void link_pack_uint(struct link_pack *p, uint64_t v)
{
    if (v < 0x80)
        add_number(p, (uint8_t)v, 0, 0);
    else if (v <= UINT8_MAX)
        add_number(p, 0xCC, v, 1);
    else if (v <= UINT16_MAX)
        add_number(p, 0xCD, v, 2);
    else if (v <= UINT32_MAX)
        add_number(p, 0xCE, v, 4);
    else
        add_number(p, 0xCF, v, 8);
}

void link_pack_double(struct link_pack *p, double v)
{
    uint64_t bits;
    memcpy(&bits, &v, sizeof bits);
    add_number(p, 0xCB, bits, 8);
}

void link_pack_text(struct link_pack *p, const char *text)
{
    const size_t n = strlen(text);
    if (n < 32)
        add_number(p, (uint8_t)(0xA0 | n), 0, 0);
    else if (n <= UINT8_MAX)
        add_number(p, 0xD9, n, 1);
    else
        add_number(p, 0xDA, n, 2);
    add(p, text, n);
}

void link_pack_array(struct link_pack *p, size_t n)
{
    if (n < 16)
        add_number(p, (uint8_t)(0x90 | n), 0, 0);
    else if (n <= UINT16_MAX)
        add_number(p, 0xDC, n, 2);
    else
        add_number(p, 0xDD, n, 4);
}

void link_pack_map(struct link_pack *p, size_t n) { add_number(p, (uint8_t)(0x80 | n), 0, 0); }
