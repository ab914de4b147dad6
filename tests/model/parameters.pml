/* Sizes and scripts of a configuration, each given by -D or taken as here; the rest of the model has none of
   its own. docs/protocol-model.md explains them. */

/* Receive slots of each side, by pool; those in no pool: RESERVE for credit messages, one for a goodbye. */
#ifndef DATA
#define DATA 2
#endif
#ifndef CONTROL
#define CONTROL 2
#endif
#ifndef RESERVE
#define RESERVE 4
#endif

/* The send queue: its places, those of them that transfers leave to messages, slots for messages that do not
   go inline, and how seldom work is signalled. INLINE: what has no payload needs no slot. PLACES 0: a queue that
   never fills up, whose work completes at once. */
#ifndef PLACES
#define PLACES 4
#endif
#ifndef MESSAGE_PLACES
#define MESSAGE_PLACES 2
#endif
#ifndef SEND_SLOTS
#define SEND_SLOTS 2
#endif
#ifndef SIGNAL_EVERY
#define SIGNAL_EVERY 2
#endif
#ifndef INLINE
#define INLINE 1
#endif

/* A rendezvous is written in so many pieces. */
#ifndef PIECES
#define PIECES 1
#endif

/* While more messages wait at a receiver, credit of further ones is held back; so is that of a notification
   beyond its budget. */
#ifndef MESSAGE_BUDGET
#define MESSAGE_BUDGET 0
#endif
#ifndef NOTIFICATION_BUDGET
#define NOTIFICATION_BUDGET 1
#endif

/* The script of each side: messages it sends, of which sizes (1 small, 2 large, 3 of either), the first of them
   with tag 0 and the others, where TAGS is 2, with tag 1; how many of its receives are too small; writes with a
   notification. */
#ifndef SENDS_0
#define SENDS_0 2
#endif
#ifndef SENDS_1
#define SENDS_1 2
#endif
#ifndef SIZES
#define SIZES 3
#endif
#ifndef TAGS
#define TAGS 1
#endif
#ifndef ANY_TAG
#define ANY_TAG 0
#endif
#ifndef SMALL_0
#define SMALL_0 0
#endif
#ifndef SMALL_1
#define SMALL_1 0
#endif
#ifndef WRITES_0
#define WRITES_0 0
#endif
#ifndef WRITES_1
#define WRITES_1 0
#endif

/* How a side orders its script: 0 in any way; 1 receives only when all it sent has ended; 2 sends only when
   all its receives are posted; 3 receives tag 1 to the end before it asks for tag 0. */
#ifndef MANNER_0
#define MANNER_0 0
#endif
#ifndef MANNER_1
#define MANNER_1 0
#endif

/* A look at the completion queue may take several completions; a side may say goodbye at any time. */
#ifndef BATCH
#define BATCH 1
#endif
#ifndef GOODBYE
#define GOODBYE 0
#endif

#define SLOTS (DATA + CONTROL + RESERVE + GOODBYE)
#define SENDS(side) (side == 0 -> SENDS_0 : SENDS_1)
#define SMALL(side) (side == 0 -> SMALL_0 : SMALL_1)
#define WRITES(side) (side == 0 -> WRITES_0 : WRITES_1)
#define MANNER(side) (side == 0 -> MANNER_0 : MANNER_1)
#define TAG_OF(message, sends) ((message) * TAGS / (sends))

/* Most messages, and so receives and answers, of a script: sizes of arrays and of queues without a bound. */
#ifndef MOST
#define MOST 4
#endif
#if SENDS_0 > MOST || SENDS_1 > MOST || WRITES_0 > MOST || WRITES_1 > MOST
#error a script is longer than MOST
#endif
/* Tag of a receive that takes any. */
#define ANY 9
