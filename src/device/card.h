/*
 * card - a second door of the device: a graphics card beside the processor.
 *
 * The device is the processor's; what is on the card is computed there, with the same bits.
 */
#ifndef INGLE_DEVICE_CARD_H
#define INGLE_DEVICE_CARD_H

#include "device/device.h"

/* device_card_open(): the first that can, without a word if there is none; or 1 + its number. */
enum { DEVICE_CARD_AUTO = -1 };

/* Directly after device_create(): d has a card from now on, or, reported, none.  memory: bytes of
 * it that may be used; 0: what is free but a reserve.  INGLE_ARG: there is no card of that number
 * (the text says how many there are). */
MUST_CHECK ingle_status device_card_open(struct device *d, int card, uint64_t memory,
                                         struct err *err);

struct device_card_info {
    char name[64];
    int number, driver;  /* driver: its version, 1000 * major + 10 * minor */
    int major, minor;    /* compute capability */
    size_t shared;       /* bytes of shared memory of a block */
    uint64_t bytes, free_bytes; /* of its memory, when it was opened */
    bool integrated;     /* its memory is the host's */
};
/* NULL: there is none, or it was lost. */
const struct device_card_info *device_card(const struct device *d);
/* The card was lost: the step that it was lost in fails with INGLE_LOST, and then the processor
 * goes on.  Pages and matrices that lay on the card have no contents any more. */
bool device_card_lost(const struct device *d);
/* idle: nothing will be on it, the processor computes all, and no more of its memory is taken. */
void device_card_idle(struct device *d, bool idle);
/* Bytes of the card's memory that may still be taken. */
uint64_t device_card_left(const struct device *d);

/* Where a matrix that is made from now on is to be; DEVICE_HOST at first. */
enum device_side { DEVICE_HOST, DEVICE_CARD };
void device_set_side(struct device *d, enum device_side side);
/* The same of one that is made, before it is loaded. */
void device_matrix_want(struct device_matrix *m, enum device_side side);
enum device_side device_matrix_wanted(const struct device_matrix *m);
/* Around the loading of many: pinned memory for the way, at most twice as much as the largest of
 * them takes. */
void device_upload_begin(struct device *d, uint64_t largest);
void device_upload_end(struct device *d);
/* It is loaded: one that is to be on the card goes there, and may still be on its way until
 * device_upload_end().  What the card cannot compute with, or has no room for, stays with the host,
 * reported.  The host's bytes may change at once. */
void device_matrix_upload(struct device_matrix *m);
/* It stays with the host after all. */
void device_matrix_stay(struct device_matrix *m);
/* It is on the card, and the host's memory of it has no contents from now on.  When the processor
 * needs them (a lost card, a product whose other matrices the card has not), home() is called
 * between two operations, by the thread that computes: it puts them there, and calls
 * device_matrix_back() of each matrix that it has loaded.  An error fails the step. */
typedef ingle_status device_home_fn(void *arg, const struct device_matrix *m, struct err *err);
void device_matrix_away(struct device_matrix *m, device_home_fn *home, void *arg);
void device_matrix_back(struct device_matrix *m);
/* Where it is now. */
enum device_side device_matrix_side(const struct device_matrix *m);
/* Vectors are on both sides.  What is computed with one is computed where its layer is, so that
 * rows cross the border between two layers once. */
void device_vector_want(struct device_vector *v, enum device_side side);
/* NULL: the card has kernels for such a matrix; else why not. */
const char *device_card_refuses(struct device *d, const struct device_matrix *m);
/* NULL: pages of such keys and values, or rows, may be on the card: the addresses of
 * device_own_take() stand in their page tables then; else why not. */
const char *device_card_refuses_kv(struct device *d, const struct device_kv *kv);
const char *device_card_refuses_stream(struct device *d, const struct device_stream *s);
/* Of the card's own memory (device_own_take()), both. */
void device_own_copy(struct device *d, void *to, const void *from, size_t n_bytes);

#endif
