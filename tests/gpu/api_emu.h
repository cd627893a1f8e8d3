/*
 * api_emu - the driver of emulated cards (device/gpu/api.h), for tests.
 *
 * A program that has api_emu.c has these cards, and no other.  Memory of a card is closed to the
 * host but while copies and launches happen, which is when somebody waits for the stream: the
 * destination of a copy to the host is poison until then, and its source is read as late.
 */
#ifndef INGLE_TESTS_GPU_API_EMU_H
#define INGLE_TESTS_GPU_API_EMU_H

#include "gpu/emu.h"
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct emu_cards {
    int n;              /* cards; 0: the driver has none */
    size_t bytes;       /* memory of each */
    int capability;     /* 75, 80, 90 */
    enum emu_order order;
    bool integrated;    /* its memory is the processor's */
    bool absent;        /* there is no driver */
    uint64_t fail_at;   /* this call of the driver fails; 0: none */
    const char *fail_in; /* only calls of this function count ("put"); NULL: all */
    bool memory;        /* it fails for want of memory */
    uint64_t lose_at;   /* from this call on the card is lost; 0: never */
    size_t steal;       /* bytes that another process takes when free memory has been asked for */
    uint64_t hang_at;   /* this launch does not end; 0: all do */
    bool refuse;        /* code is refused */
    const char *refuse_in; /* that of this module */
    bool count;         /* copies and launches are shown at the end */
    const char *skip;   /* this kernel does nothing */
};
/* Of launches from now on (emu.c): below 80 copies to shared memory are there at once. */
void emu_capability(int capability);
/* Of the next device that is made; and of one that there is: the counts begin again. */
void emu_cards_set(const struct emu_cards *c);
/* Calls of the driver that count. */
uint64_t emu_cards_calls(void);
/* Bytes of cards that are taken, of all programs' devices. */
size_t emu_cards_taken(void);
/* Copies to a card and from one so far, with their bytes. */
struct emu_copies { uint64_t n_put, put_bytes, n_get, get_bytes; };
struct emu_copies emu_cards_copies(void);
/* Launches so far, of a kernel or of all (NULL). */
uint64_t emu_cards_launches(const char *kernel);

#endif
