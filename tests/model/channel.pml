/* What messaging/channel does: the send queue of each side, and the wire from it to the peer.

   A message lies on the wire from the moment it is posted until it was handled: in the send queue, under way, or
   in a receive slot of the peer. Any of them may have arrived, so there must be a slot for all of them. */

mtype = { eager, request, clear, finish, refuse, credit, goodbye, notification };

/* kind, tag, id (of eager too: which message it is), peer id, data credits, control credits */
chan wire[2] = [SLOTS + 1] of { mtype, byte, byte, byte, byte, byte };

/* Work in the send queue, a byte each. */
#define SIGNALLED 1
#define HAS_SLOT 2
#define ENDS_SEND 4
#define ENDS_WRITE 8
chan work[2] = [PLACES + 1] of { byte };
byte slots_used[2];
byte unsignalled[2];
byte completions[2]; /* signalled work in the queue: may complete at any time, in order */
byte unposted[2];    /* receive slots that were handled and not given back to the queue pair yet */

/* Credits::collect, Credits::due and what both sides have. */
byte data_credit[2] = DATA;
byte control_credit[2] = CONTROL;
byte owed_data[2], owed_control[2];
byte held[2]; /* data credit held back: messages and notifications beyond the budgets */

/* For the assertions only: what lies on the wire from a side. */
byte wire_data[2], wire_control[2], wire_credits[2];
byte carried_data[2], carried_control[2];

#ifdef ONE_POOL
#define answers_pool_has_credit(me) (data_credit[me] > 0)
#define is_data(kind) (kind != credit && kind != goodbye)
#define is_control(kind) false
#else
#define answers_pool_has_credit(me) (control_credit[me] > 0)
#define is_data(kind) (kind == eager || kind == request || kind == notification)
#define is_control(kind) (kind == clear || kind == finish || kind == refuse)
#endif

#ifdef NEVER_DUE
#define due(me) false
#else
#ifdef DUE_AT_WHOLE
#define due(me) (owed_data[me] >= DATA || owed_control[me] >= CONTROL)
#else
#define due(me) (owed_data[me] * 2 >= DATA || owed_control[me] * 2 >= CONTROL)
#endif
#endif

#define needs_slot(kind) (kind == eager || !INLINE)
#if PLACES
#define can_post_message(me, kind) \
  (len(work[me]) < PLACES && (!needs_slot(kind) || slots_used[me] < SEND_SLOTS))
#define can_post_piece(me) (PLACES - len(work[me]) > MESSAGE_PLACES)
#else
#define can_post_message(me, kind) true
#define can_post_piece(me) true
#endif

/* Every data and every control slot of the peer is somewhere, once: as a credit of ours, under a message of
   ours, owed, held back, or on its way home. */
#define conserved(me, peer) \
  (data_credit[me] + wire_data[me] + owed_data[peer] + held[peer] + carried_data[peer] == DATA && \
   control_credit[me] + wire_control[me] + owed_control[peer] + carried_control[peer] == CONTROL)
inline check_credits() {
  assert(conserved(0, 1) && conserved(1, 0)); /* no credit lost, none made up */
  assert(wire_credits[0] <= 4 && wire_credits[1] <= 4); /* two halves of two pools */
}

/* What its completion ends: a rendezvous send or a write. */
inline end(ends) {
  ended_sends[me] = ended_sends[me] + ((ends & ENDS_SEND) != 0);
  ended_writes[me] = ended_writes[me] + ((ends & ENDS_WRITE) != 0)
}

inline post_work(has_slot, ends, must_signal) {
#if PLACES
  unsignalled[me]++;
  slots_used[me] = slots_used[me] + has_slot;
#ifdef NEVER_SIGNALLED
  is_signalled = must_signal;
#else
  is_signalled = must_signal || unsignalled[me] >= SIGNAL_EVERY ||
                 (has_slot && (SEND_SLOTS - slots_used[me]) * 2 <= SEND_SLOTS);
#endif
  if
  :: is_signalled -> unsignalled[me] = 0; completions[me]++
  :: else
  fi;
  work[me] ! ends + (has_slot -> HAS_SLOT : 0) + (is_signalled -> SIGNALLED : 0);
  assert(len(work[me]) <= PLACES)
#else
  end(ends)
#endif
}

inline onto_wire(kind, tag, id, other, data, control) {
  printf("%d: posts %e %d with %d data and %d control credits\n", me, kind, id, data, control);
  wire_data[me] = wire_data[me] + is_data(kind);
  wire_control[me] = wire_control[me] + is_control(kind);
  wire_credits[me] = wire_credits[me] + (kind == credit);
  carried_data[me] = carried_data[me] + data;
  carried_control[me] = carried_control[me] + control;
  assert(len(wire[me]) + unposted[peer] < SLOTS); /* the message finds a receive slot at the peer */
  wire[me] ! kind, tag, id, other, data, control
}

/* Exchange::post: what is owed rides on every message. */
inline post(kind, tag, id, other, ends) {
  post_work(needs_slot(kind), ends, (ends != 0));
  onto_wire(kind, tag, id, other, owed_data[me], owed_control[me]);
  owed_data[me] = 0;
  owed_control[me] = 0
}

/* Channel::retire: everything up to the oldest signalled work completes. */
inline retire() {
  printf("%d: work completes\n", me);
  do
  :: work[me] ? retired;
     slots_used[me] = slots_used[me] - ((retired & HAS_SLOT) != 0);
     end(retired);
     if
     :: retired & SIGNALLED -> break
     :: else
     fi
  od;
  completions[me]--
}
