/* What messaging/exchange does: the queues for what cannot be posted yet, the matcher, and what each message of
   the peer does. Names are those of the code. */

/* A rendezvous is known by its ids: `asked`, by the number of the message; `writing`, by that of the receive. */
chan data[2] = [MOST] of { mtype, byte, byte };          /* eager or request, tag, number */
chan answers[2] = [MOST * 2] of { mtype, byte, byte, byte }; /* kind, tag, id, peer id */
chan transfers[2] = [MOST * 2] of { mtype, byte };       /* finish: a rendezvous, its receive; notification: a
                                                            write, its number */
chan notifying[2] = [MOST] of { byte };
byte pieces[2];                                          /* of the oldest transfer, posted */
byte written[2 * MOST];                                  /* pieces posted towards each receive of a side */
byte asked[2], writing[2];                               /* sets of bits */

chan posted[2] = [MOST] of { byte, bool, byte };         /* tag, large enough, number of the receive */
chan arrived[2] = [MOST] of { mtype, byte, byte, bool }; /* kind, tag, number of the message, credit held */
byte newest[4];                                          /* by side and tag: the message matched last */
byte notifications[2], last_notification[2], notifications_held[2];
bool late_refusal[2];
byte ended_sends[2], ended_receives[2], ended_writes[2];

#define bit(number) (1 << (number))
/* The id of a refused eager message, whose send has long ended. */
#define NOBODY 7
#if ANY_TAG
#define take_posted(tag) posted[me] ? found_tag, fits, receive
#define accepted_by_posted(tag) len(posted[me]) > 0
#define take_arrived(tag) arrived[me] ? kind, found_tag, id, was_held
#define waits(tag) len(arrived[me]) > 0
#else
#define take_posted(tag) posted[me] ?? eval(tag), fits, receive
#define accepted_by_posted(tag) posted[me] ?? [eval(tag), fits, receive]
#define take_arrived(tag) arrived[me] ?? kind, eval(tag), id, was_held
#define waits(tag) arrived[me] ?? [kind, eval(tag), id, was_held]
#endif

/* Exchange::flush_control */
inline flush_answers() {
  do
  :: len(answers[me]) > 0 && answers_pool_has_credit(me) && can_post_message(me, clear) ->
     answers[me] ? kind, tag, id, other;
#ifdef ONE_POOL
     data_credit[me]--;
#else
     control_credit[me]--;
#endif
     post(kind, tag, id, other, (kind == finish -> ENDS_SEND : 0))
  :: else -> break
  od
}

#ifdef NOTIFICATIONS_OVERTAKE
#define may_notify(me) (data_credit[me] > 0)
#else
#define may_notify(me) (data_credit[me] > 0 && len(notifying[me]) == 0)
#endif

inline notify(number, ends) {
  data_credit[me]--;
  post_work(0, ends, 1);
  onto_wire(notification, 0, number, 0, 0, 0)
}

/* Transfer::post and end_of_posting, for the oldest transfer until one has no room. */
inline flush_transfers() {
  do
  :: len(transfers[me]) > 0 ->
     transfers[me] ? <kind, id>;
     wanted = (kind == finish -> PIECES : 1);
     notify_now = may_notify(me);
     notified = false;
#ifdef FINISH_FIRST
     if
     :: kind == finish && pieces[me] == 0 ->
        posted_now = id;
        answers[me] ! finish, 0, id, 0;
        flush_answers();
        kind = finish;
        id = posted_now
     :: else
     fi;
#endif
     do
     :: pieces[me] < wanted && can_post_piece(me) ->
        pieces[me]++;
        if
        :: kind == finish -> post_work(0, 0, 0); written[peer * MOST + id]++
        :: kind != finish && notify_now -> notify(id, ENDS_WRITE); notified = true
        :: else -> post_work(0, 0, 1)
        fi
     :: else -> break
     od;
     if
     :: pieces[me] < wanted -> break
     :: else
     fi;
     transfers[me] ? kind, id;
     pieces[me] = 0;
     if
#ifdef FINISH_FIRST
     :: kind == finish -> skip
#else
     :: kind == finish -> answers[me] ! finish, 0, id, 0; flush_answers()
#endif
     :: kind != finish && !notified -> notifying[me] ! id
     :: else
     fi
  :: else -> break
  od
}

inline flush_notifications() {
  do
  :: len(notifying[me]) > 0 && data_credit[me] > 0 && can_post_piece(me) ->
     notifying[me] ? id;
     notify(id, ENDS_WRITE)
  :: else -> break
  od
}

inline post_data(kind, tag, id) {
  data_credit[me]--;
  if
  :: kind == eager -> ended_sends[me]++
  :: else -> asked[me] = asked[me] | bit(id)
  fi;
  post(kind, tag, id, 0, 0)
}

inline flush() {
  flush_answers();
  flush_transfers();
  flush_notifications();
  do
  :: len(data[me]) > 0 && data_credit[me] > 0 ->
     data[me] ? <kind, tag, id>;
#ifdef EAGER_OVERTAKES
     found = data[me] ?? [eager, tag, id];
     if
     :: found -> kind = eager
     :: else
     fi;
#endif
     if
     :: can_post_message(me, kind) -> data[me] ?? eval(kind), tag, id; post_data(kind, tag, id)
     :: else -> break
     fi
  :: else -> break
  od;
  if
  :: due(me) && can_post_message(me, credit) -> post(credit, 0, 0, 0, 0)
  :: else
  fi
}

/* A message meets a receive: Exchange::deliver, grant and refuse. */
inline meet(large_enough) {
  assert(id >= newest[me * 2 + tag]); /* messages of a tag are matched in the order they were sent */
  newest[me * 2 + tag] = id + 1;
  if
  :: !large_enough ->
#ifdef REFUSAL_FORGETS_ID
     answers[me] ! refuse, tag, NOBODY, 0;
#else
     answers[me] ! refuse, tag, (kind == eager -> NOBODY : id), 0;
#endif
     ended_receives[me]++
  :: large_enough && kind == eager -> ended_receives[me]++
  :: large_enough && kind == request ->
     writing[me] = writing[me] | bit(receive);
#ifdef ANSWERED_TWICE
     answers[me] ! clear, tag, id, receive;
#endif
     answers[me] ! clear, tag, id, receive
  fi
}

/* Exchange::on_eager and on_request: the oldest receive that accepts the tag, or Exchange::keep. */
inline on_data() {
  found = accepted_by_posted(tag);
  if
  :: found ->
     take_posted(tag);
#ifdef REFUSAL_KEEPS_CREDIT
     owed_data[me] = owed_data[me] + fits;
#else
     owed_data[me]++;
#endif
     meet(fits)
  :: else ->
     was_held = len(arrived[me]) > MESSAGE_BUDGET;
     arrived[me] ! kind, tag, id, was_held;
     held[me] = held[me] + was_held;
     owed_data[me] = owed_data[me] + !was_held
  fi
}

inline settle() {
  held[me] = held[me] - was_held;
  owed_data[me] = owed_data[me] + was_held
}

inline owe_answer() {
#ifdef ONE_POOL
  owed_data[me]++
#else
  owed_control[me]++
#endif
}

/* Takes the operation that a message names off the set of those that wait for it. */
inline take(operations) {
  assert(operations & bit(id)); /* none answered twice, none that never asked */
  operations = operations & ~bit(id)
}

inline on_notification() {
  assert(id == last_notification[me]); /* in the order the writes were started */
  last_notification[me]++;
  notifications[me]++;
  if
  :: notifications[me] > NOTIFICATION_BUDGET -> notifications_held[me]++; held[me]++
  :: else -> owed_data[me]++
  fi
}

inline handle() {
  wire[peer] ? kind, tag, id, other, got_data, got_control;
  printf("%d: handles %e %d\n", me, kind, id);
  wire_data[peer] = wire_data[peer] - is_data(kind);
  wire_control[peer] = wire_control[peer] - is_control(kind);
  wire_credits[peer] = wire_credits[peer] - (kind == credit);
  carried_data[peer] = carried_data[peer] - got_data;
  carried_control[peer] = carried_control[peer] - got_control;
  unposted[me]++;
  data_credit[me] = data_credit[me] + got_data;
  control_credit[me] = control_credit[me] + got_control;
  if
  :: kind == eager || kind == request -> on_data()
  :: kind == clear -> owe_answer(); take(asked[me]); transfers[me] ! finish, other
  :: kind == finish ->
     owe_answer();
     take(writing[me]);
     assert(written[me * MOST + id] == PIECES); /* all its bytes came before */
     written[me * MOST + id] = 0;
     ended_receives[me]++
  :: kind == refuse && id == NOBODY -> owe_answer(); late_refusal[me] = true
  :: kind == refuse && id != NOBODY -> owe_answer(); take(asked[me]); ended_sends[me]++
  :: kind == notification -> on_notification()
  :: kind == credit || kind == goodbye -> skip
  fi
}
