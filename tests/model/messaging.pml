/* A model of the credit and rendezvous protocol between the two ends of a connection, for spin.
   docs/protocol-model.md says what it stands for, and tests/unit/test_protocol_model.py runs it.

   Both sides are alike. A side's every step is one that the code does under the lock of its connection: a call of
   the program, or a look at the completion queue. It ends when both scripts have ended; a state without a next
   step before that is a deadlock, which spin reports as an invalid end state. */

#include "parameters.pml"

/* Scratch of one step, without a meaning between steps: no part of the state. */
hidden mtype kind;
hidden byte tag, found_tag, id, other, got_data, got_control, receive, retired, wanted, posted_now;
hidden byte is_signalled, found, fits, was_held, notify_now, notified; /* yes or no; spin hides no bits */

#include "channel.pml"
#include "exchange.pml"
#include "program.pml"

active [2] proctype side() {
  byte me = _pid;
  byte peer = 1 - _pid;
  bool polled = false, flushes = false;
  do
  :: atomic {
       if
       :: d_step { late_refusal[me] -> late_refusal[me] = false } /* a send tells, having sent nothing */
#if SIZES & 1
       :: d_step { may_try(me) -> try_send() }
       :: d_step { may_send(me) -> send(eager) }
#endif
#if SIZES & 2
       :: d_step { may_send(me) -> send(request) }
#endif
       :: d_step { may_receive(me, 0) -> start_receive(0, true, true) }
       :: d_step { may_receive(me, 0) -> start_receive(0, true, false) }
#if SMALL_0 || SMALL_1
       :: d_step { may_receive_little(me, 0) -> start_receive(0, false, false) }
#endif
#if TAGS == 2 && !ANY_TAG
       :: d_step { may_receive(me, 1) -> start_receive(1, true, true) }
       :: d_step { may_receive(me, 1) -> start_receive(1, true, false) }
#if SMALL_0 || SMALL_1
       :: d_step { may_receive_little(me, 1) -> start_receive(1, false, false) }
#endif
#endif
#if WRITES_0 || WRITES_1
       :: d_step { started_writes[me] < WRITES(me) -> write() }
       :: d_step { may_take(me) -> take_notification() }
#endif
#if GOODBYE
       :: d_step { !said_goodbye[me] && can_post_message(me, goodbye) -> say_goodbye() }
#endif
#ifdef CREDIT_BEFORE_SLOT
       :: d_step { unposted[me] > 0 -> unposted[me] = 0 }
#endif
       /* Connection::poll: flushes where it found something */
       :: len(wire[peer]) > 0 || completions[me] > 0 ->
          do
          :: len(wire[peer]) > 0 && (BATCH || !polled) -> d_step { handle(); polled = true }
          :: completions[me] > 0 && (BATCH || !polled) -> d_step { retire(); polled = true }
          :: polled -> break
          od;
          flushes = true
       fi;
       d_step {
#ifndef CREDIT_BEFORE_SLOT
         unposted[me] = 0;
#endif
         if
         :: flushes -> flush()
         :: else
         fi;
         polled = false;
         flushes = false;
         check_credits()
       }
     }
  :: all_ended -> break
  od;
  /* Nothing is left anywhere, and every credit is home or owed. */
  assert(len(data[me]) == 0 && len(answers[me]) == 0 && len(transfers[me]) == 0 && len(notifying[me]) == 0);
  assert(len(posted[me]) == 0 && len(arrived[me]) == 0 && asked[me] == 0 && writing[me] == 0 && held[me] == 0);
  assert(data_credit[me] + owed_data[peer] == DATA && control_credit[me] + owed_control[peer] == CONTROL)
}
