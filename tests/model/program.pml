/* The two programs that use the connection, and how each side moves forward. */

byte started_sends[2], started_receives[2], small_receives[2], started_writes[2], taken[2];
byte started_of_tag[4];
bool said_goodbye[2];

/* Messages of a tag that the peer's script sends. */
#define EXPECTED(tag, sends) (TAGS == 1 || ANY_TAG -> sends : (tag == 0 -> (sends + 1) / 2 : sends / 2))

#define may_send(me) \
  (started_sends[me] < SENDS(me) && !late_refusal[me] && \
   (MANNER(me) != 2 || started_receives[me] == SENDS((1 - me))))
#define may_receive(me, tag) \
  (started_of_tag[me * 2 + tag] < EXPECTED(tag, SENDS((1 - me))) && \
   (MANNER(me) != 1 || ended_sends[me] == SENDS(me)) && \
   (MANNER(me) != 3 || tag == 1 || ended_receives[me] >= EXPECTED(1, SENDS((1 - me)))))
#define may_receive_little(me, tag) (may_receive(me, tag) && small_receives[me] < SMALL(me))
#define may_take(me) (notifications[me] > 0 && (MANNER(me) != 1 || ended_sends[me] == SENDS(me)))

#define script_ended(me, peer) \
  (ended_sends[me] == SENDS(me) && ended_receives[me] == SENDS(peer) && ended_writes[me] == WRITES(me) && \
   taken[me] == WRITES(peer) && said_goodbye[me] == GOODBYE)
/* A credit message that has no place in the send queue yet goes with the next completion. */
#define will_send_credit(me) (due(me) && completions[me] > 0)
#define all_ended \
  (script_ended(0, 1) && script_ended(1, 0) && len(wire[0]) == 0 && len(wire[1]) == 0 && \
   !will_send_credit(0) && !will_send_credit(1))

/* Exchange::try_send: past the queue where nothing is in it. */
#define may_try(me) (may_send(me) && len(data[me]) == 0 && data_credit[me] > 0 && can_post_message(me, eager))

inline try_send() {
  id = started_sends[me];
  tag = TAG_OF(started_sends[me], SENDS(me));
  started_sends[me]++;
  printf("%d: send %d, past the queue\n", me, id);
  post_data(eager, tag, id)
}

inline send(size) {
  printf("%d: send %d\n", me, started_sends[me]);
  data[me] ! size, TAG_OF(started_sends[me], SENDS(me)), started_sends[me];
  started_sends[me]++;
  flushes = true
}

/* Connection::receive (`at_once`: what is here already is taken without a request) and ireceive. */
inline start_receive(wanted_tag, large_enough, at_once) {
  started_of_tag[me * 2 + wanted_tag]++;
  small_receives[me] = small_receives[me] + !large_enough;
  found = waits(wanted_tag);
  if
  :: found ->
     tag = wanted_tag;
     take_arrived(wanted_tag);
     printf("%d: receive %d takes message %d, which waits\n", me, started_receives[me], id);
#if ANY_TAG
     tag = found_tag;
#endif
     receive = started_receives[me];
     meet(large_enough);
     settle();
     if
#ifdef TAKES_WITHOUT_FLUSH
     :: at_once && large_enough && kind == eager -> skip
#else
     :: at_once && large_enough && kind == eager && !was_held -> skip
#endif
     :: else -> flushes = true
     fi
  :: else ->
     printf("%d: receive %d waits\n", me, started_receives[me]);
     posted[me] ! (ANY_TAG -> ANY : wanted_tag), large_enough, started_receives[me]
  fi;
  started_receives[me]++
}

/* Exchange::transfer: a write whose end the peer is told of. */
inline write() {
  id = started_writes[me];
  printf("%d: write %d\n", me, id);
  started_writes[me]++;
  if
  :: len(transfers[me]) == 0 && can_post_piece(me) && may_notify(me) -> notify(id, ENDS_WRITE)
  :: else -> transfers[me] ! notification, id; flushes = true
  fi
}

inline take_notification() {
  notifications[me]--;
  taken[me]++;
  printf("%d: takes a notification\n", me);
  if
  :: notifications_held[me] > 0 -> notifications_held[me]--; held[me]--; owed_data[me]++; flushes = true
  :: else
  fi
}

inline say_goodbye() {
  said_goodbye[me] = true;
  unsignalled[me] = SIGNAL_EVERY; /* so that it is signalled */
  post(goodbye, 0, 0, 0, 0)
}
