/*
 * random_card - devices of golden_open() on emulated cards: layers, experts, pages and single
 * operations on random sides, in a random order of threads; one device of four has no card.
 *
 * A program of tests/golden that has random_card.c compares what the card and the processor
 * compute.  INGLE_TEST_SEED is the first seed (1).
 */
#ifndef INGLE_TESTS_GPU_RANDOM_CARD_H
#define INGLE_TESTS_GPU_RANDOM_CARD_H

#include <stdint.h>

enum random_card_kind { RANDOM_CARD_ANY, RANDOM_CARD_NO, RANDOM_CARD_YES };
/* The next device is of this kind, and random numbers begin with the seed. */
void random_card_set(uint32_t seed, enum random_card_kind next);

#endif
