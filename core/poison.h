/*
 * Tells AddressSanitizer which bytes of memory that is managed here nobody may touch; nothing in other builds.
 */
#pragma once

#if defined(__SANITIZE_ADDRESS__)
#define ZG_POISON_IS_ON 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define ZG_POISON_IS_ON 1
#endif
#endif

#ifdef ZG_POISON_IS_ON
#include <sanitizer/asan_interface.h>
#define ZG_POISON(address, bytes) ASAN_POISON_MEMORY_REGION((address), (bytes))
#define ZG_UNPOISON(address, bytes) ASAN_UNPOISON_MEMORY_REGION((address), (bytes))
#else
#define ZG_POISON(address, bytes) ((void)(address), (void)(bytes))
#define ZG_UNPOISON(address, bytes) ((void)(address), (void)(bytes))
#endif
