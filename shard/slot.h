/*
 * Hash slots of Redis Cluster. Source: the cluster specification, CRC16 (XMODEM) modulo 16,384, hash tags.
 */
#pragma once

#include <stdint.h>

/* The hash slot of a key, 0 .. 16,383: of the bytes between the first '{' and the next '}' where there are any, else of all. */
uint16_t slot_of_key(const uint8_t *key, uint32_t length);
