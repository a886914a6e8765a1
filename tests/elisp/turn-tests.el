;;; turn-tests.el --- Around a request  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The first part drives a state machine by hand, with a dispatcher of its
;; own, so that a failure is to the point.  The second part uses the real
;; gptel with a provider on the loopback interface.  The backend is a real
;; process in both.

;;; Code:

(require 'test-helper)
(require 'gptel)
(require 'gptel-curl nil t)             ; part of gptel-request since 0.9.9.3
(require 'gptel-openai)
(require 'gptel-org)
(require 'markdown-mode)
(require 'gptel-retention-turn)

;;; By hand

(defvar turn-tests-backend
  (let ((gptel--known-backends nil))
    (gptel-make-openai "T" :key "k" :host "h.test" :models '(m)))
  "A backend that is never reached.")

(defconst turn-tests-due "[{\"role\":\"user\",\"content\":\"due\"}]"
  "A delivery to insert.")

(defmacro turn-tests-with-chat (mode &rest body)
  "Run BODY in a chat buffer in MODE whose conversation is kept."
  (declare (indent 1) (debug t))
  `(let ((gptel-retention-sections nil)
         (gptel-retention-reminders nil)
         (gptel-use-context nil)
         (gptel-use-curl t)
         (gptel-backend turn-tests-backend)
         (gptel-model 'm))
     (with-temp-buffer
       (funcall ,mode)
       (setq-local gptel-track-response t)
       (unwind-protect
           (progn (gptel-retention-turn-enable)
                  ,@body)
         (gptel-retention-turn-disable)))))

(defun turn-tests-messages (&rest texts)
  "Return user and assistant messages with TEXTS in turn, a fresh vector."
  (let ((roles '("user" "assistant")) (n -1))
    (vconcat (mapcar (lambda (text)
                       (list :role (nth (mod (cl-incf n) 2) roles)
                             :content (copy-sequence text)))
                     texts))))

(defun turn-tests-fsm (messages &rest more)
  "Return a state machine of a request of this buffer with MESSAGES.
MORE are further elements of its plist."
  (let ((fsm (gptel-make-fsm)))
    (gptel-retention-turn--note fsm nil (current-buffer))
    (setf (gptel-fsm-info fsm)
          (append more
                  (list :backend turn-tests-backend :model 'm
                        :buffer (current-buffer)
                        :position (copy-marker (point))
                        :callback #'gptel--insert-response
                        :history '(INIT)
                        :data (list :model "m" :messages messages
                                    :stream t))))
    fsm))

(defun turn-tests-dispatch (fsm)
  "Dispatch FSM as gptel would; return the array that goes out, a copy."
  (let (sent)
    (gptel-retention-turn--around-dispatch
     (lambda (fsm)
       (setq sent (copy-tree (gptel-retention-host-array (gptel-fsm-info fsm))
                             t)))
     fsm)
    sent))

(defun turn-tests-loop (fsm &rest messages)
  "Add MESSAGES to the payload of FSM as a round of the tool loop does."
  (let ((data (plist-get (gptel-fsm-info fsm) :data)))
    (plist-put (gptel-fsm-info fsm) :history '(TRET TOOL TYPE WAIT INIT))
    (plist-put data :messages
               (vconcat (plist-get data :messages) messages))))

(defun turn-tests-array (json)
  "Return JSON, a parsed array of the log, as gptel would hold it."
  (gptel-retention-host-decode
   (decode-coding-string (gptel-retention-host-encode json) 'utf-8)))

(defun turn-tests-params (&optional method)
  "Return the parameters of all METHOD requests (default prepare)."
  (mapcar (lambda (entry) (plist-get entry :params))
          (test-helper-log (or method "request/prepare"))))

(defun turn-tests-settle (method count)
  "Wait until the backend was asked METHOD COUNT times."
  (test-helper-wait 3 (format "%d x %s" count method)
                    (lambda () (>= (length (test-helper-log method)) count))))

(ert-deftest turn-tests-unchanged-when-nothing-is-planned ()
  "A plan without edits leaves the payload as it is, and is committed."
  (test-helper-with-backend nil
    (turn-tests-with-chat 'text-mode
      (insert "hello")
      (let* ((messages (turn-tests-messages "hello"))
             (fsm (turn-tests-fsm messages)))
        (should (equal messages (turn-tests-dispatch fsm)))
        (should (eq messages
                    (gptel-retention-host-array (gptel-fsm-info fsm))))
        (turn-tests-settle "request/commit" 1)
        (should (equal '("initialize" "conversation/open" "request/prepare"
                         "request/commit")
                       (test-helper-methods)))
        (let ((params (car (turn-tests-params))))
          (should (equal "buffer" (plist-get params :origin)))
          (should (equal "messages" (plist-get params :array)))
          (should (equal "0123456789abcdef0123456789abcdef"
                         (plist-get params :conversation)))
          (should (equal "{\"model\":\"m\",\"stream\":true}"
                         (plist-get params :head)))
          (should-not (plist-member params :base))
          (should-not (plist-member params :span))
          ;; The payload ends with the prompt as it stands (Q6).
          (should-not (plist-member params :prompt)))
        (should (equal '((:plan "p1")) (turn-tests-params "request/commit")))
        (should (equal gptel-retention-id
                       "0123456789abcdef0123456789abcdef"))))))

(ert-deftest turn-tests-edits-are-applied ()
  "Keep, drop and insert make a new array; the old one is not changed."
  (test-helper-with-backend
      `(("request/prepare"
         . [(:result
             (:edits [(:keep 1) (:drop 1)
                      (:insert ,(concat "[{\"role\":\"assistant\","
                                        "\"content\":\"é\",\"n\":null,"
                                        "\"o\":{},\"f\":false}]"))
                      (:keep 1)
                      (:insert ,turn-tests-due)]))]))
    (turn-tests-with-chat 'text-mode
      (let* ((messages (turn-tests-messages "a" "b" "c"))
             (before (copy-tree messages t))
             (fsm (turn-tests-fsm messages))
             (sent (turn-tests-dispatch fsm)))
        (should (equal [(:role "user" :content "a")
                        (:role "assistant" :content "é" :n :null :o nil
                               :f :json-false)
                        (:role "user" :content "c")
                        (:role "user" :content "due")]
                       sent))
        (should (equal before messages))
        (should (equal sent (turn-tests-array
                             (plist-get (car (test-helper-log
                                              "request/prepare"))
                                        :sent))))))))

(ert-deftest turn-tests-large-edits-come-in-a-file ()
  "P2: edits that are handed over in a file are applied and the file goes."
  (let ((text (make-string 20000 ?é)))
    (test-helper-with-backend
        `(("request/prepare"
           . [(:file
               (:edits_file
                ,(decode-coding-string
                  (gptel-retention-host-encode
                   (vector '(:keep 1)
                           (list :insert
                                 (format "[{\"role\":\"user\",\"content\":%S}]"
                                         text))))
                  'utf-8)))]))
      (turn-tests-with-chat 'text-mode
        (should (equal (vector '(:role "user" :content "a")
                               (list :role "user" :content text))
                       (turn-tests-dispatch
                        (turn-tests-fsm (turn-tests-messages "a")))))
        (should-not (directory-files (gptel-retention-rpc-directory) nil
                                     "\\`gptel"))))))

(ert-deftest turn-tests-reuse-takes-from-the-last-sent-array ()
  "Reuse takes messages that were sent before, as copies."
  (test-helper-with-backend
      `(("request/prepare"
         . [(:result (:edits [(:keep 1)
                              (:insert ,turn-tests-due)]))
            (:result (:reuse "s1" :edits [(:reuse 2) (:drop 1) (:keep 2)]))]))
    (turn-tests-with-chat 'text-mode
      (turn-tests-dispatch (turn-tests-fsm (turn-tests-messages "a")))
      (let* ((fsm (turn-tests-fsm (turn-tests-messages "a" "b" "c")))
             (sent (turn-tests-dispatch fsm)))
        (should (equal [(:role "user" :content "a")
                        (:role "user" :content "due")
                        (:role "assistant" :content "b")
                        (:role "user" :content "c")]
                       sent))
        (should (equal ["s1"] (plist-get (cadr (turn-tests-params)) :have)))
        ;; gptel may change a message in place; the copy we keep stays.
        (plist-put (aref (gptel-retention-host-array (gptel-fsm-info fsm)) 1)
                   :content "changed")
        (turn-tests-dispatch (turn-tests-fsm (turn-tests-messages "a")))
        (should (member "s2" (append (plist-get (nth 2 (turn-tests-params))
                                                :have)
                                     nil)))))))

(ert-deftest turn-tests-bad-edits-leave-the-payload ()
  "Z1: edits that do not fit are told once, and the plan is abandoned."
  (dolist (edits '([(:keep 1)] [(:keep 9)] [(:keep 2) (:drop 1)] [(:odd 1)]
                   [(:reuse 1) (:drop 2)] [(:keep 2) (:insert "{}")]
                   [(:keep 2) (:insert "[broken")]))
    (test-helper-with-backend
        `(("request/prepare" . [(:result (:edits ,edits))]))
      (turn-tests-with-chat 'text-mode
        (let* ((messages (turn-tests-messages "a" "b"))
               (fsm (turn-tests-fsm messages))
               (said (test-helper-messages
                       (should (equal messages (turn-tests-dispatch fsm))))))
          (should (equal 1 (length said)))
          (should (eq messages
                      (gptel-retention-host-array (gptel-fsm-info fsm))))
          (turn-tests-settle "request/abandon" 1)
          (should-not (test-helper-log "request/commit")))))))

;;; Only what is new travels

(ert-deftest turn-tests-delta-keeps-the-common-prefix ()
  "Q1: the next turn sends what follows the common prefix, and no head."
  (test-helper-with-backend nil
    (turn-tests-with-chat 'text-mode
      (turn-tests-dispatch (turn-tests-fsm (turn-tests-messages "a" "b" "c")))
      (turn-tests-dispatch
       (turn-tests-fsm (turn-tests-messages "a" "b" "c" "d" "e")))
      (turn-tests-dispatch
       (turn-tests-fsm (turn-tests-messages "a" "edited" "c")))
      (pcase-let ((`(,first ,second ,third) (turn-tests-params)))
        (should-not (plist-get first :base))
        (should (equal '("o1" 3) (list (plist-get second :base)
                                       (plist-get second :keep))))
        (should (equal (turn-tests-messages "x" "d" "e")
                       (vconcat [(:role "user" :content "x")]
                                (turn-tests-array
                                 (json-parse-string (plist-get second :tail)
                                                    :object-type 'plist)))))
        (should-not (plist-member second :head))
        (should (equal '("o2" 1) (list (plist-get third :base)
                                       (plist-get third :keep)))))
      ;; What the backend makes of it is the whole array.
      (should (equal (turn-tests-messages "a" "b" "c" "d" "e")
                     (turn-tests-array
                      (plist-get (cadr (test-helper-log "request/prepare"))
                                 :array)))))))

(ert-deftest turn-tests-changed-head-travels-again ()
  "Q1: tools, system and parameters are sent when they changed."
  (test-helper-with-backend nil
    (turn-tests-with-chat 'text-mode
      (turn-tests-dispatch (turn-tests-fsm (turn-tests-messages "a")))
      (let ((fsm (turn-tests-fsm (turn-tests-messages "a"))))
        (plist-put (plist-get (gptel-fsm-info fsm) :data) :stream :json-false)
        (turn-tests-dispatch fsm))
      (should (equal "{\"model\":\"m\",\"stream\":false}"
                     (plist-get (cadr (turn-tests-params)) :head))))))

(ert-deftest turn-tests-loop-compares-with-the-sent-array ()
  "Q1, Q2: in the loop the base is what this request sent, edits and all."
  (test-helper-with-backend
      `(("request/prepare"
         . [(:result (:edits [(:keep 1)
                              (:insert ,turn-tests-due)]))
            (:result nil)]))
    (turn-tests-with-chat 'text-mode
      (let ((fsm (turn-tests-fsm (turn-tests-messages "a"))))
        (turn-tests-dispatch fsm)
        (turn-tests-loop fsm
                         '(:role "assistant" :tool_calls [(:id "1")])
                         '(:role "tool" :content "r"))
        (turn-tests-dispatch fsm)
        (let ((params (cadr (turn-tests-params))))
          (should (equal "loop" (plist-get params :origin)))
          (should (equal "s1" (plist-get params :base)))
          (should (equal 2 (plist-get params :keep)))
          (should (equal (plist-get (car (turn-tests-params)) :request)
                         (plist-get params :request)))
          (should (equal "[]" (plist-get params :span))))
        ;; The next turn compares with what the buffer gave last time.
        (turn-tests-dispatch (turn-tests-fsm (turn-tests-messages "a" "b")))
        (should (equal "o1" (plist-get (nth 2 (turn-tests-params)) :base)))))))

(ert-deftest turn-tests-in-place-changes-by-gptel-are-seen ()
  "Q1: a message that gptel changed in place is not taken for the old one."
  (test-helper-with-backend nil
    (turn-tests-with-chat 'text-mode
      (let ((fsm (turn-tests-fsm (turn-tests-messages "a" "b"))))
        (turn-tests-dispatch fsm)
        (plist-put (aref (gptel-retention-host-array (gptel-fsm-info fsm)) 1)
                   :content "b, and more")
        (turn-tests-loop fsm '(:role "user" :content "r"))
        (turn-tests-dispatch fsm)
        (should (equal 1 (plist-get (cadr (turn-tests-params)) :keep)))))))

(ert-deftest turn-tests-unknown-base-sends-the-whole ()
  "Q1: on resync the whole array is sent, once."
  (test-helper-with-backend
      '(("request/prepare"
         . [(:result nil)
            (:error (:code -32000 :message "?" :data (:code "resync")))
            (:result nil)]))
    (turn-tests-with-chat 'text-mode
      (turn-tests-dispatch (turn-tests-fsm (turn-tests-messages "a")))
      (turn-tests-dispatch (turn-tests-fsm (turn-tests-messages "a" "b")))
      (pcase-let ((`(,_ ,second ,third) (turn-tests-params)))
        (should (equal "o1" (plist-get second :base)))
        (should-not (plist-member third :base))
        (should (plist-get third :head)))
      (turn-tests-settle "request/commit" 2))))

(ert-deftest turn-tests-restarted-backend-gets-the-whole ()
  "L3: nothing is built on what a backend knew that is gone."
  (test-helper-with-backend nil
    (turn-tests-with-chat 'text-mode
      (turn-tests-dispatch (turn-tests-fsm (turn-tests-messages "a")))
      (gptel-retention-rpc-shutdown)
      (turn-tests-dispatch (turn-tests-fsm (turn-tests-messages "a" "b")))
      (let ((params (cadr (turn-tests-params))))
        (should-not (plist-member params :base))
        (should (equal [] (plist-get params :have))))
      (should (equal 2 (length (test-helper-log "conversation/open")))))))

(ert-deftest turn-tests-forgotten-conversation-is-opened-again ()
  "A conversation that the backend does not know is opened again."
  (test-helper-with-backend
      '(("request/prepare"
         . [(:result nil)
            (:error (:code -32000 :message "?"
                           :data (:code "unknown_conversation")))
            (:result nil)]))
    (turn-tests-with-chat 'text-mode
      (turn-tests-dispatch (turn-tests-fsm (turn-tests-messages "a")))
      (turn-tests-dispatch (turn-tests-fsm (turn-tests-messages "a")))
      (turn-tests-settle "request/commit" 2)
      (should (equal 2 (length (test-helper-log "conversation/open")))))))

;;; Failures

(ert-deftest turn-tests-original-goes-out-whatever-the-backend-does ()
  "Z1: missing, hanging, garbage, dying, refusing: unchanged, one message."
  (pcase-dolist (`(,what . ,script)
                 '((hang ("request/prepare" . [(:hang t)]))
                   (garbage ("request/prepare" . [(:garbage "nonsense")]))
                   (die ("request/prepare" . [(:die t)]))
                   (stop ("request/prepare" . [(:stop t)]))
                   (refuse ("request/prepare"
                            . [(:error (:code -32603 :message "internal"
                                              :data (:code "internal")))]))
                   (nonsense ("request/prepare"
                              . [(:result (:plan 7 :edits "x"))]))
                   (open ("conversation/open" . [(:result (:id :null))]))
                   (old ("initialize" . [(:result (:protocol 0))]))
                   (missing)))
    (ert-info ((symbol-name what))
      (test-helper-with-backend script
        (let ((gptel-retention-timeout 0.4)
              (gptel-retention-command
               (if (eq what 'missing) '("no-such-program-for-retention")
                 gptel-retention-command)))
          (turn-tests-with-chat 'text-mode
            (unless (memq what '(missing old))
              (gptel-retention-rpc-ensure))
            (setq gptel-retention-rpc--reported nil)
            (let* ((messages (turn-tests-messages "a"))
                   (outcomes nil)
                   (start (float-time))
                   (said
                    (test-helper-messages
                      (let ((gptel-retention-after-prepare-functions
                             (list (lambda (outcome)
                                     (push outcome outcomes)))))
                        (should (equal messages
                                       (turn-tests-dispatch
                                        (turn-tests-fsm messages))))
                        (should (< (- (float-time) start) 1.5))
                        (turn-tests-dispatch (turn-tests-fsm messages))))))
              (should (< (- (float-time) start) 1.5))
              ;; The second one may name another cause: that it is paused.
              (should (<= 1 (length said) 2))
              (should (plist-get (car outcomes) :error))
              (should-not (test-helper-log "request/commit")))))))))

(ert-deftest turn-tests-error-in-gptel-abandons-and-is-raised ()
  "H1: an error of the dispatcher passes, and the edits are taken back."
  (test-helper-with-backend
      `(("request/prepare"
         . [(:result (:edits [(:keep 1)
                              (:insert ,turn-tests-due)]))]))
    (turn-tests-with-chat 'text-mode
      (let* ((messages (turn-tests-messages "a"))
             (fsm (turn-tests-fsm messages))
             (seen nil))
        (should (equal '(error "curl is gone")
                       (should-error
                        (gptel-retention-turn--around-dispatch
                         (lambda (fsm)
                           (setq seen (length (gptel-retention-host-array
                                               (gptel-fsm-info fsm))))
                           (error "curl is gone"))
                         fsm))))
        (should (equal 2 seen))
        (should (eq messages
                    (gptel-retention-host-array (gptel-fsm-info fsm))))
        (turn-tests-settle "request/abandon" 1)
        (should (equal '((:plan "p1")) (turn-tests-params "request/abandon")))
        (should-not (test-helper-log "request/commit"))))))

(ert-deftest turn-tests-quit-while-waiting-passes ()
  "P1: \\`C-g' while the backend thinks quits; nothing goes out or is kept."
  (test-helper-with-backend '(("request/prepare" . [(:delay 0.5)]))
    (turn-tests-with-chat 'text-mode
      (gptel-retention-rpc-ensure)
      (let ((fsm (turn-tests-fsm (turn-tests-messages "a"))) sent)
        (run-at-time 0.1 nil (lambda () (setq quit-flag t)))
        (should (eq 'quit
                    (condition-case nil
                        (gptel-retention-turn--around-dispatch
                         (lambda (_) (setq sent t)) fsm)
                      (quit 'quit))))
        (should-not sent)
        (should-not (test-helper-log "request/commit"))))))

(ert-deftest turn-tests-quit-in-gptel-abandons ()
  "P1: \\`C-g' while gptel sends abandons the plan."
  (test-helper-with-backend nil
    (turn-tests-with-chat 'text-mode
      (should (eq 'quit
                  (condition-case nil
                      (gptel-retention-turn--around-dispatch
                       (lambda (_) (signal 'quit nil))
                       (turn-tests-fsm (turn-tests-messages "a")))
                    (quit 'quit))))
      (turn-tests-settle "request/abandon" 1)
      (should-not (test-helper-log "request/commit")))))

(ert-deftest turn-tests-raw-bytes-are-left-to-gptel ()
  "S8: a payload that is no JSON goes to gptel as it is."
  (test-helper-with-backend nil
    (turn-tests-with-chat 'text-mode
      (let ((messages (vector (list :role "user"
                                    :content (string #x3FFF80)))))
        (should (equal messages
                       (turn-tests-dispatch (turn-tests-fsm messages))))))))

;;; Which requests

(ert-deftest turn-tests-other-requests-are-left-alone ()
  "H2: a prompt of its own, or a buffer without the mode, is not touched."
  (test-helper-with-backend nil
    (turn-tests-with-chat 'text-mode
      (let ((gptel-retention-sections '(environment)))
        (dolist (how '(prompt buffer))
          (let ((fsm (gptel-make-fsm)))
            (if (eq how 'prompt)
                (gptel-request "a prompt" :dry-run t :fsm fsm)
              (with-temp-buffer
                (insert "x")
                (gptel-request nil :dry-run t :fsm fsm)))
            (should (turn-tests-dispatch fsm))))
        (should-not (test-helper-log "request/prepare"))))))

(ert-deftest turn-tests-kagi-is-left-alone ()
  "A payload without a conversation is not touched."
  (test-helper-with-backend nil
    (turn-tests-with-chat 'text-mode
      (let ((fsm (turn-tests-fsm (turn-tests-messages "a"))))
        (plist-put (gptel-fsm-info fsm) :data '(:query "q"))
        (gptel-retention-turn--around-dispatch #'ignore fsm)
        (should-not (test-helper-log "request/prepare"))))))

(ert-deftest turn-tests-detached-request-with-selection ()
  "H2, D7: a request of its own prompt with a selection is a conversation."
  (test-helper-with-backend nil
    (turn-tests-with-chat 'text-mode
      (gptel-retention-define-section 'turn-tests-a :body (lambda () "A"))
      (gptel-retention-define-section 'turn-tests-b :body (lambda () "B"))
      (let* ((gptel-retention-sections '(turn-tests-a))
             (fsm (let ((gptel-retention-request-sections '(turn-tests-b)))
                    (gptel-request "a prompt" :dry-run t))))
        (turn-tests-dispatch fsm)
        (let ((params (car (turn-tests-params))))
          (should (eq t (plist-get params :frozen)))
          (should (equal '("turn-tests-b" "B")
                         (let ((section (aref (plist-get params :sections) 0)))
                           (list (plist-get section :name)
                                 (plist-get section :body)))))
          (should (equal 1 (length (plist-get params :sections))))
          (should (equal [] (plist-get params :reminders)))
          (should-not (plist-member params :prompt)))
        (should-not gptel-retention-id)
        (should (equal "" (plist-get (car (turn-tests-params
                                           "conversation/open"))
                                     :file)))))))

(ert-deftest turn-tests-sections-and-reminders-travel ()
  "D1, D9: what there is, what there is not, and what failed."
  (test-helper-with-backend
      '(("request/prepare" . [(:result (:reminders ["turn-tests-event"]))]))
    (turn-tests-with-chat 'text-mode
      (gptel-retention-define-section 'turn-tests-full
        :title "Full" :kind 'guidance
        :body (lambda () (concat "é" (string #x3FFF80))))
      (gptel-retention-define-section 'turn-tests-none :body #'ignore)
      (gptel-retention-define-section 'turn-tests-broken
        :body (lambda () (error "Broken")))
      (let ((gptel-retention-sections
             '(turn-tests-full turn-tests-none turn-tests-broken)))
        (gptel-retention-remind "turn-tests-event" "Look!")
        (turn-tests-dispatch (turn-tests-fsm (turn-tests-messages "a")))
        (let ((params (car (turn-tests-params))))
          (should (equal '("é\uFFFD" :null :null)
                         (mapcar (lambda (section) (plist-get section :body))
                                 (plist-get params :sections))))
          (should (equal '(:json-false :json-false t)
                         (mapcar (lambda (section) (plist-get section :error))
                                 (plist-get params :sections))))
          (should (equal '(:json-false "turn-tests-event" "Look!")
                         (let ((reminder (aref (plist-get params :reminders)
                                               0)))
                           (list (plist-get params :frozen)
                                 (plist-get reminder :key)
                                 (plist-get reminder :body))))))
        ;; It was delivered, so it is gone.
        (turn-tests-dispatch (turn-tests-fsm (turn-tests-messages "a")))
        (should (equal [] (plist-get (cadr (turn-tests-params))
                                     :reminders)))))))

(ert-deftest turn-tests-prompt-form-travels-when-it-differs ()
  "Q6: the prompt as it stands goes along if a transform changed it."
  (test-helper-with-backend nil
    (turn-tests-with-chat 'text-mode
      (insert "@preset text")
      (turn-tests-dispatch (turn-tests-fsm (turn-tests-messages "text")))
      (should (equal "[{\"role\":\"user\",\"content\":\"@preset text\"}]"
                     (plist-get (car (turn-tests-params)) :prompt))))))

(ert-deftest turn-tests-include-is-asked-for-and-taken-back ()
  "The payload asks for encrypted reasoning while it is sent, if we may."
  (dolist (wanted '(t nil))
    (test-helper-with-backend
        '(("request/prepare" . [(:result (:include ["a.b" "c.d"]))]))
      (turn-tests-with-chat 'text-mode
        (let* ((gptel-retention-request-encrypted-reasoning wanted)
               (fsm (turn-tests-fsm (turn-tests-messages "a")))
               (data (plist-get (gptel-fsm-info fsm) :data))
               (heads nil)
               (send (lambda (fails)
                       (gptel-retention-turn--around-dispatch
                        (lambda (fsm)
                          (push (decode-coding-string
                                 (gptel-retention-host-head
                                  (gptel-fsm-info fsm))
                                 'utf-8)
                                heads)
                          (when fails (error "curl is gone")))
                        fsm))))
          (plist-put data :include ["c.d"])
          (should-error (funcall send t))
          (funcall send nil)
          (turn-tests-loop fsm '(:role "user" :content "r"))
          (funcall send nil)
          (should (equal (make-list 3 (format
                                       "{\"model\":\"m\",\"stream\":true,%s"
                                       (if wanted
                                           "\"include\":[\"c.d\",\"a.b\"]}"
                                         "\"include\":[\"c.d\"]}")))
                         heads))
          (should (eq data (plist-get (gptel-fsm-info fsm) :data)))
          (should (equal ["c.d"] (plist-get data :include)))
          ;; What is compared is gptel's own: it travels once.
          (should (equal '(t nil nil)
                         (mapcar (lambda (params)
                                   (and (equal
                                         (plist-get params :head)
                                         (concat "{\"model\":\"m\","
                                                 "\"stream\":true,"
                                                 "\"include\":[\"c.d\"]}"))
                                        t))
                                 (turn-tests-params))))
          ;; Z6: if the provider refuses it, that may be why.
          (plist-put (gptel-fsm-info fsm) :http-status "400")
          (gptel--fsm-transition fsm 'ERRS)
          (gptel-retention-rpc-call "inspect/check" nil)
          (should (equal (if wanted 1 0)
                         (length (test-helper-log "request/refused")))))))))

(ert-deftest turn-tests-options-travel ()
  "Whether context stays and marks are planned is told with each request.
C3: they are planned for models that gptel knows to have a cache."
  (test-helper-with-backend nil
    (turn-tests-with-chat 'text-mode
      (let ((gptel-retention-keep-context t)
            (capable nil))
        (cl-letf (((symbol-function 'gptel-retention-host-caches-p)
                   (lambda (_info) capable)))
          (turn-tests-dispatch (turn-tests-fsm (turn-tests-messages "a")))
          (setq capable t
                gptel-retention-keep-context nil)
          (turn-tests-dispatch (turn-tests-fsm (turn-tests-messages "a")))
          (let ((gptel-retention-plan-cache-marks nil))
            (turn-tests-dispatch (turn-tests-fsm (turn-tests-messages "a"))))))
      (should (equal '((t :json-false) (:json-false t)
                       (:json-false :json-false))
                     (mapcar (lambda (params)
                               (list (plist-get params :context)
                                     (plist-get params :marks)))
                             (turn-tests-params)))))))

(ert-deftest turn-tests-changed-call-is-told ()
  "H6, R2: a call that anything changed is told with the next prepare alone."
  (test-helper-with-backend nil
    (turn-tests-with-chat 'text-mode
      (let* ((fsm (turn-tests-fsm (turn-tests-messages "a")))
             (other (turn-tests-fsm (turn-tests-messages "a")))
             (round (lambda (&rest change)
                      (let ((call '(:id "1" :name "read" :args (:p "a"))))
                        (turn-tests-loop
                         fsm (list :role "assistant"
                                   :tool_calls
                                   (vector (list :id "1" :type "function"
                                                 :function
                                                 (list :name "read"
                                                       :arguments "{}")))))
                        (when change
                          (gptel--inject-tool-call
                           turn-tests-backend
                           (plist-get (gptel-fsm-info fsm) :data)
                           call (car change)))
                        (turn-tests-loop fsm '(:role "tool" :content "r"))
                        (turn-tests-dispatch fsm)))))
        (turn-tests-dispatch fsm)
        (turn-tests-dispatch other)
        (funcall round '(:args (:p "b")))
        (funcall round)
        (funcall round nil)
        (turn-tests-loop other '(:role "user" :content "r"))
        (turn-tests-dispatch other)
        (should (equal '(:json-false :json-false t :json-false t :json-false)
                       (mapcar (lambda (params) (plist-get params :hooked))
                               (turn-tests-params))))))))

(ert-deftest turn-tests-breaches-are-told-once ()
  "What the provider will refuse is told before it is sent, and sent."
  (test-helper-with-backend
      '(("request/prepare"
         . [(:result (:breaches [(:code "call_id" :detail "4: call_x")
                                 (:code "last_role" :detail "6: assistant")]))
            (:result (:breaches [(:code "call_id" :detail "5: call_y")]))]))
    (turn-tests-with-chat 'text-mode
      (let* ((messages (turn-tests-messages "a")) sent
             (said (test-helper-messages
                     (dotimes (_ 2)
                       (setq sent (turn-tests-dispatch
                                   (turn-tests-fsm messages)))))))
        (should (equal messages sent))
        (should (equal '("[retention] T will refuse this request: \
call_id, message 4: call_x"
                         "[retention] T will refuse this request: \
last_role, message 6: assistant")
                       said))))))

(ert-deftest turn-tests-refusal-is-reported-once-edited ()
  "Z6: a 4xx to an edited request is reported; others are not."
  (pcase-dolist (`(,status ,edited ,expected)
                 '(("400" t 1) ("422" t 1) ("429" t 0) ("401" t 0)
                   ("500" t 0) ("400" nil 0)))
    (ert-info ((format "%s edited: %s" status edited))
      (test-helper-with-backend
          (and edited
               `(("request/prepare"
                  . [(:result
                      (:edits [(:keep 1)
                               (:insert ,turn-tests-due)]))])))
        (turn-tests-with-chat 'text-mode
          (let ((fsm (turn-tests-fsm (turn-tests-messages "a"))))
            (turn-tests-dispatch fsm)
            (plist-put (gptel-fsm-info fsm) :http-status status)
            (plist-put (gptel-fsm-info fsm) :error '(:message "bad"))
            (gptel--fsm-transition fsm 'ERRS)
            (gptel-retention-rpc-call "inspect/check" nil)
            (should (equal expected
                           (length (test-helper-log "request/refused"))))
            (when (equal expected 1)
              (let ((params (car (turn-tests-params "request/refused"))))
                (should (equal "p1" (plist-get params :plan)))
                (should (equal "{\"message\":\"bad\"}"
                               (plist-get params :body)))))
            (should-not (test-helper-log "turn/complete"))))))))

;;; Identity of a conversation

(ert-deftest turn-tests-id-is-kept-with-the-file ()
  "I1, H4: the id is saved with gptel's state and read back, in each mode."
  (dolist (mode '(org-mode markdown-mode text-mode))
    (ert-info ((symbol-name mode))
      (let* ((extension (pcase mode ('org-mode ".org")
                               ('markdown-mode ".md") (_ ".txt")))
             (file (make-temp-file "retention" nil extension "Hello\n"))
             (enable-local-variables :safe)
             (id "fedcba9876543210fedcba9876543210"))
        (test-helper-with-backend
            `(("conversation/open" . [(:result (:id ,id))]))
          (unwind-protect
              (let ((buffer (find-file-noselect file)))
                (with-current-buffer buffer
                  (funcall mode)
                  (gptel-mode 1)
                  (gptel-retention-turn-enable)
                  (set-buffer-modified-p nil)
                  (goto-char (point-max))
                  (turn-tests-dispatch
                   (turn-tests-fsm (turn-tests-messages "Hello")))
                  (should (equal id gptel-retention-id))
                  ;; Nothing is dirtied by itself.
                  (should-not (buffer-modified-p))
                  (set-buffer-modified-p t)
                  (save-buffer)
                  (kill-buffer))
                (setq buffer (find-file-noselect file))
                (with-current-buffer buffer
                  (should-not (string-match-p
                               "retention-reminder" (buffer-string)))
                  (unless (derived-mode-p mode)
                    (funcall mode))
                  (gptel-mode 1)
                  (gptel-retention-turn-enable)
                  (should (equal id gptel-retention-id))
                  (turn-tests-dispatch
                   (turn-tests-fsm (turn-tests-messages "Hello")))
                  (should (equal
                           (list id (file-truename file))
                           (let ((params (cadr (turn-tests-params
                                                "conversation/open"))))
                             (list (plist-get params :id)
                                   (plist-get params :file)))))
                  (set-buffer-modified-p nil)
                  (kill-buffer)))
            (delete-file file)))))))

(ert-deftest turn-tests-copied-file-takes-the-new-id ()
  "H4: if the backend answers another id, a fork, the buffer takes it."
  (test-helper-with-backend
      '(("conversation/open" . [(:result (:id "aaaa" :forked "bbbb"))]))
    (turn-tests-with-chat 'text-mode
      (setq gptel-retention-id "bbbb")
      (turn-tests-dispatch (turn-tests-fsm (turn-tests-messages "a")))
      (should (equal "aaaa" gptel-retention-id))
      (should (equal "aaaa" (plist-get (car (turn-tests-params))
                                       :conversation))))))

(ert-deftest turn-tests-indirect-buffers-share-the-conversation ()
  "H4: an indirect buffer has the conversation of its base buffer."
  (test-helper-with-backend nil
    (turn-tests-with-chat 'text-mode
      (turn-tests-dispatch (turn-tests-fsm (turn-tests-messages "a")))
      (let ((indirect (make-indirect-buffer (current-buffer) "i" t)))
        (unwind-protect
            (with-current-buffer indirect
              (turn-tests-dispatch (turn-tests-fsm (turn-tests-messages "a")))
              (should (equal (gptel-retention-turn-id)
                             (buffer-local-value
                              'gptel-retention-id
                              (buffer-base-buffer)))))
          (kill-buffer indirect)))
      (should (equal 1 (length (test-helper-log "conversation/open"))))
      (should (equal "o1" (plist-get (cadr (turn-tests-params)) :base))))))

(ert-deftest turn-tests-id-survives-a-change-of-mode ()
  "I1: a buffer without a file keeps its id for its life."
  (test-helper-with-backend nil
    (turn-tests-with-chat 'text-mode
      (turn-tests-dispatch (turn-tests-fsm (turn-tests-messages "a")))
      (fundamental-mode)
      (should-not (gptel-retention-turn-enabled-p))
      (gptel-retention-turn-enable)
      (turn-tests-dispatch (turn-tests-fsm (turn-tests-messages "a")))
      (should (equal "o1" (plist-get (cadr (turn-tests-params)) :base))))))

(ert-deftest turn-tests-advice-goes-with-the-last-buffer ()
  "gptel is as before once no conversation is kept."
  (test-helper-with-backend nil
    (let* ((places (mapcan
                    (lambda (advice)
                      (seq-filter #'fboundp
                                  (alist-get (car advice)
                                             gptel-retention-host-functions)))
                    gptel-retention-turn--advice))
           (count (lambda ()
                    (let ((n 0))
                      (dolist (place places n)
                        (advice-mapc
                         (lambda (advice _)
                           (when (and (symbolp advice)
                                      (string-prefix-p
                                       "gptel-retention"
                                       (symbol-name advice)))
                             (cl-incf n)))
                         place)))))
           (all (length places))
           (a (generate-new-buffer "a"))
           (b (generate-new-buffer "b")))
      (should (> all 5))
      (should (= 0 (funcall count)))
      (with-current-buffer a
        (gptel-retention-turn-enable)
        (gptel-retention-turn-enable))
      (with-current-buffer b (gptel-retention-turn-enable))
      (should (= all (funcall count)))
      (with-current-buffer a (gptel-retention-turn-disable))
      (should (= all (funcall count)))
      (kill-buffer b)
      (should (= 0 (funcall count)))
      (kill-buffer a))))

;;; With the real gptel

(defvar turn-tests-bodies nil
  "File with the bodies that the provider got.")

(defmacro turn-tests-with-provider (answers &rest body)
  "Run BODY with a provider that gives ANSWERS, a vector of plists.
`gptel-backend' is bound to a backend that talks to it."
  (declare (indent 1) (debug t))
  `(let ((turn-tests-bodies (make-temp-file "retention-bodies"))
         (script (make-temp-file "retention-answers"))
         (output (generate-new-buffer " *provider*")))
     (write-region (json-serialize ,answers) nil script nil 'silent)
     (let ((process (make-process
                     :name "provider" :buffer output :noquery t
                     :command (list (test-helper-python)
                                    (expand-file-name "fake_provider.py"
                                                      test-helper-directory)
                                    script turn-tests-bodies))))
       (unwind-protect
           (let* ((port (progn
                          (test-helper-wait
                           10 "the provider"
                           (lambda ()
                             (string-suffix-p
                              "\n" (with-current-buffer output
                                     (buffer-string)))))
                          (string-to-number (with-current-buffer output
                                              (buffer-string)))))
                  (gptel--known-backends nil)
                  (turn-tests-backend
                   (gptel-make-openai "T" :key "k" :models '(m) :stream t
                                      :protocol "http"
                                      :host (format "127.0.0.1:%d" port))))
             ,@body)
         (delete-process process)
         (kill-buffer output)
         (delete-file turn-tests-bodies)
         (delete-file script)))))

(defun turn-tests-bodies ()
  "Return the messages of each request that the provider got."
  (with-temp-buffer
    (insert-file-contents turn-tests-bodies)
    (let (all)
      (while (not (eobp))
        (push (append (plist-get (json-parse-buffer :object-type 'plist)
                                 :messages)
                      nil)
              all)
        (skip-chars-forward "\n"))
      (nreverse all))))

(defun turn-tests-tool ()
  "Return a tool that reads."
  (gptel-make-tool :name "read" :description "Read." :include t
                   :function (lambda (p) (format "contents of %s " p))
                   :args '((:name "p" :type string :description "Name."))))

(defun turn-tests-send ()
  "Send this buffer and wait for the end of the turn."
  (let (ended)
    (add-hook 'gptel-post-response-functions
              (lambda (&rest _) (setq ended t)) nil t)
    (goto-char (point-max))
    (gptel-send)
    (test-helper-wait 10 "the end of the turn" (lambda () ended))))

(ert-deftest turn-tests-whole-turn-with-gptel ()
  "Q3, Q5: spans in the loop, the last piece at the end, edits on the wire."
  (dolist (mode '(text-mode org-mode))
    (dolist (stream '(t nil))
      (ert-info ((format "%s, stream: %s" mode stream))
        (turn-tests-with-provider
            [(:text "Let me look." :calls [["read" (:p "a")]
                                           ["read" (:p "b")]])
             (:text "Done, all of it.")]
          (test-helper-with-backend
              `(("request/prepare"
                 . [(:result
                     (:edits [(:keep 2)
                              (:insert ,turn-tests-due)]))
                    (:result nil)]))
            (turn-tests-with-chat mode
              (setq-local gptel-stream stream
                          gptel-use-tools t
                          gptel-confirm-tool-calls nil
                          gptel-tools (list (turn-tests-tool)))
              (insert "Please read")
              (turn-tests-send)
              (turn-tests-settle "turn/complete" 1)

              (let ((bodies (turn-tests-bodies)))
                (should (equal 2 (length bodies)))
                ;; What we added went out, and stays in the loop.
                (should (equal '(:role "user" :content "due")
                               (nth 2 (car bodies))))
                (should (equal (car bodies) (seq-take (cadr bodies) 3))))
              (pcase-let* ((`(,_ ,second) (turn-tests-params))
                           (complete (car (turn-tests-params "turn/complete")))
                           (span (json-parse-string
                                  (plist-get second :span)
                                  :object-type 'plist :array-type 'list)))
                (should (equal "s1" (plist-get second :base)))
                (should (equal 3 (plist-get second :keep)))
                (should (equal '("assistant" "assistant" "tool" "assistant"
                                 "tool")
                               (mapcar (lambda (message)
                                         (plist-get message :role))
                                       span)))
                (should (equal "Let me look." (plist-get (car span) :content)))
                (should (equal (concat "[{\"role\":\"assistant\","
                                       "\"content\":\"Done, all of it.\"}]")
                               (plist-get complete :span)))
                (should-not (plist-member complete :whole))
                (should (equal (plist-get second :request)
                               (plist-get complete :request))))
              (should (equal '("request/commit" "request/commit")
                             (cl-remove "request/commit"
                                        (test-helper-methods)
                                        :test-not #'equal))))))))))

(ert-deftest turn-tests-next-rebuild-is-the-pieces ()
  "Q3: what the next turn's payload adds are the spans, in order."
  (turn-tests-with-provider
      [(:text "Look." :calls [["read" (:p "a")]]) (:text "Done.")
       (:text "Again.")]
    (test-helper-with-backend nil
      (turn-tests-with-chat 'org-mode
        (setq-local gptel-use-tools t
                    gptel-confirm-tool-calls nil
                    gptel-tools (list (turn-tests-tool)))
        (insert "Please read")
        (turn-tests-send)
        (goto-char (point-max))
        (insert "\n\nand again")
        (turn-tests-send)
        (turn-tests-settle "turn/complete" 2)
        (let* ((third (nth 2 (turn-tests-params)))
               (read (lambda (text)
                       (json-parse-string text :object-type 'plist
                                          :array-type 'list)))
               (tail (funcall read (plist-get third :tail))))
          (should (equal "o1" (plist-get third :base)))
          (should (equal (butlast tail)
                         (append
                          (funcall read (plist-get (cadr (turn-tests-params))
                                                   :span))
                          (funcall read
                                   (plist-get (car (turn-tests-params
                                                    "turn/complete"))
                                              :span))))))))))

(ert-deftest turn-tests-hidden-results-send-the-whole ()
  "Q3: where texts merge since all results are hidden, the whole is sent."
  (turn-tests-with-provider
      [(:text "Look." :calls [["read" (:p "a")]]) (:text "Done.")]
    (test-helper-with-backend nil
      (turn-tests-with-chat 'text-mode
        (setq-local gptel-use-tools t
                    gptel-confirm-tool-calls nil
                    gptel-include-tool-results nil
                    gptel-tools (list (turn-tests-tool)))
        (insert "Please read")
        (turn-tests-send)
        (turn-tests-settle "turn/complete" 1)
        (should (string-match-p
                 "Look.*Done"
                 (plist-get (car (turn-tests-params "turn/complete"))
                            :whole)))))))

(ert-deftest turn-tests-refused-by-the-provider ()
  "Z6: the provider's 400 to an edited request reaches the backend."
  (turn-tests-with-provider [(:status 400)]
    (test-helper-with-backend
        `(("request/prepare"
           . [(:result
               (:edits [(:keep 2)
                        (:insert ,turn-tests-due)]))]))
      (turn-tests-with-chat 'text-mode
        (insert "Hello")
        (turn-tests-send)
        (turn-tests-settle "request/refused" 1)
        (let ((params (car (turn-tests-params "request/refused"))))
          (should (equal 400 (plist-get params :status)))
          (should (string-match-p "no" (plist-get params :body))))))))

(ert-deftest turn-tests-url-retrieve-works-too ()
  "H1: without curl the same happens."
  (turn-tests-with-provider [(:text "Hi.")]
    (test-helper-with-backend nil
      (turn-tests-with-chat 'text-mode
        (let ((gptel-use-curl nil))
          (insert "Hello")
          (turn-tests-send)
          (turn-tests-settle "turn/complete" 1)
          (should (equal '("initialize" "conversation/open" "request/prepare"
                           "request/commit" "response/record"
                           "turn/complete")
                         (test-helper-methods))))))))

(ert-deftest turn-tests-five-buffers-and-a-slow-backend ()
  "P1: waits that nest inside sentinels do not hang any chat."
  (turn-tests-with-provider
      (vconcat (cl-loop repeat 5 collect
                        '(:text "L." :calls [["read" (:p "a")]]))
               (cl-loop repeat 5 collect
                        '(:text "L." :calls [["read" (:p "b")]])))
    (test-helper-with-backend '(("request/prepare" . [(:delay 0.1)]))
      (let ((gptel-retention-sections nil)
            (gptel-retention-reminders nil)
            (gptel-use-context nil)
            (gptel-backend turn-tests-backend)
            (gptel-model 'm)
            (gptel-use-tools t)
            (gptel-confirm-tool-calls nil)
            (gptel-tools (list (turn-tests-tool)))
            (buffers (cl-loop for n below 5 collect
                              (generate-new-buffer (format "chat-%d" n))))
            (ended 0))
        (unwind-protect
            (progn
              (dolist (buffer buffers)
                (with-current-buffer buffer
                  (text-mode)
                  (gptel-retention-turn-enable)
                  (add-hook 'gptel-post-response-functions
                            (lambda (&rest _) (cl-incf ended)) nil t)
                  (insert "Please read")
                  (gptel-send)))
              (test-helper-wait 20 "five turns" (lambda () (= ended 5)))
              (should (equal 15 (length (turn-tests-bodies))))
              (dolist (buffer buffers)
                (should (string-suffix-p
                         "More." (string-trim (with-current-buffer buffer
                                                (buffer-string)))))))
          (dolist (buffer buffers)
            (kill-buffer buffer)))))))

(ert-deftest turn-tests-stopped-backend-costs-one-time-out ()
  "P2: with a stopped backend a turn of three requests goes on."
  (turn-tests-with-provider
      [(:text "L." :calls [["read" (:p "a")]])
       (:text "L." :calls [["read" (:p "b")]]) (:text "Done.")]
    (test-helper-with-backend '(("request/prepare" . [(:stop t)]))
      (let ((gptel-retention-timeout 0.5))
        (turn-tests-with-chat 'text-mode
          (gptel-retention-rpc-ensure)
          (setq-local gptel-use-tools t
                      gptel-confirm-tool-calls nil
                      gptel-tools (list (turn-tests-tool)))
          (insert "Please read")
          (let ((start (float-time)))
            (turn-tests-send)
            (should (< (- (float-time) start) 2.5)))
          (should (equal 3 (length (turn-tests-bodies)))))))))

(provide 'turn-tests)
;;; turn-tests.el ends here
