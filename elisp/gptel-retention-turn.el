;;; gptel-retention-turn.el --- Around a request  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; What happens around each request of a conversation: ask the backend for a
;; plan (prepare), edit the payload, let gptel send it, tell the backend that
;; it was sent (commit) or not (abandon), hand over what the provider answered,
;; byte for byte (record), and at the end of the turn what the response will
;; look like when gptel parses it again (complete).
;;
;; gptel always goes on.  An error here is told once per cause, and then the
;; request goes out as gptel made it.  Only a quit passes through.
;;
;; The state of a request hangs on its state machine, in a weak table, and
;; that of a conversation on its buffer; nothing about a request is global,
;; since requests nest: another chat's sentinel may run while one waits.
;;
;; Only what is new travels.  For that, copies are kept of the payload arrays
;; that the backend knows by name: the `ordinary' one, as gptel built it from
;; the buffer, and the `sent' ones.  They are deep copies, because gptel
;; changes messages in place.

;;; Code:

(require 'cl-lib)
(require 'seq)
(require 'subr-x)
(require 'gptel-retention-rpc)
(require 'gptel-retention-host)
(require 'gptel-retention-sections)

(declare-function org-at-heading-p "org")
(declare-function org-entry-get "org")
(declare-function org-entry-put "org")
(declare-function org-open-line "org")

(defcustom gptel-retention-delivery-shape nil
  "Where sections and reminders are put into the payload.
nil lets the backend choose what the API allows: a user message of its
own wherever that is legal.  Set another value if your model's template
refuses two user messages in a row."
  :type '(choice (const :tag "Chosen for the API" nil)
                 (const :tag "A user message of its own" message)
                 (const :tag "Merged into the user message before" merge)
                 (const :tag "In the last tool result" result))
  :group 'gptel-retention)

(defcustom gptel-retention-request-encrypted-reasoning t
  "Non-nil means ask the provider for what it needs to go on reasoning.
With the OpenAI Responses API that is the model's reasoning in encrypted
form: stored with the conversation and sent back with later requests, it
saves the model from thinking the same again, and keeps the provider's
cache.  Responses get larger by it, and you pay for it as input.  gptel
itself does not ask for it."
  :type 'boolean
  :group 'gptel-retention)

(defcustom gptel-retention-keep-context t
  "Non-nil means that context stays where it was once sent.
With `gptel-use-context' set to `user', gptel puts the context in front
of the newest prompt, and takes it away from there with the next one.
Keeping it lets the provider's cache hold what comes after it; it costs
room, since a changed context is sent again beside the old one."
  :type 'boolean
  :group 'gptel-retention)

(defcustom gptel-retention-plan-cache-marks t
  "Non-nil means choose which messages carry the marks of a prompt cache.
That happens where `gptel-cache' asks for caching of messages, for
models that gptel knows to have a cache.  gptel marks the message that
is last when you send a prompt; what the model and its tools add after
that is read anew with each of their requests.  Marking it costs the
provider's surcharge for writing to its cache."
  :type 'boolean
  :group 'gptel-retention)

(defvar gptel-retention-after-prepare-functions nil
  "Functions called after the backend was asked about a request.
Each is called in the conversation's buffer with one plist.  It is what
the backend answered to `request/prepare', with :request, :origin
\(\"buffer\" or \"loop\") and :seconds added; if something went wrong it has
:error, the error as (SYMBOL . DATA), instead of an answer.")

(defvar gptel-retention-request-sections nil
  "Names of the sections for requests made while this is bound, or nil.
Bind it around `gptel-request' to give a request of its own prompt, such
as that of an agent, a selection that stays for the whole request.")

;;; State

;;;###autoload
(defvar-local gptel-retention-id nil
  "Id of the conversation in this buffer, a string, or nil.
It is saved with gptel's own state: as an Org property or as a
file-local variable.")
;;;###autoload
(put 'gptel-retention-id 'safe-local-variable #'stringp)
(put 'gptel-retention-id 'permanent-local t)

(cl-defstruct (gptel-retention-turn--state (:copier nil))
  "A payload array that the backend knows by NAME.
ARRAY is a deep copy of it, HEAD the rest of that payload as JSON bytes.
KEY, API and GENERATION tell when it can be compared with another."
  name array head key api generation)

(cl-defstruct (gptel-retention-turn--conversation (:copier nil))
  "A conversation in BUFFER, which is never an indirect one.
OWNED is non-nil if the conversation is that of the buffer, nil for one
that a detached request has for itself.  OPENED is (GENERATION . FILE)
of when it was opened.  ORDINARY is the state as gptel last built it,
SENTS are the last sent ones.  PENDING are functions that tell the
backend what happened just now, in order.  TOLD are the breaches that
the user was told of.  LAST is the last outcome of a prepare."
  buffer owned id opened ordinary sents pending told last)

(cl-defstruct (gptel-retention-turn--request (:copier nil))
  "A request; it lives as long as its state machine.
PROMPT is (BEG . END), markers around what gptel sends of the buffer.
SELECTION is that of `gptel-retention-request-sections'.  SENT is the
last state of it that was sent as planned.  PLAN is the plan of its last
dispatch, nil if that had none, and EDITED tells whether it had edits.
RESPONSE is what the provider answered to it, and HOOKED tells whether a
call in that was changed, until the next dispatch.  BOUNDARY is a marker where the part of the
response begins that no span has covered, PIECES are the messages of the
earlier parts.  WATCHED tells that its end will be noticed."
  id conversation prompt selection sent plan edited response hooked
  boundary pieces identity array watched)

(cl-defstruct (gptel-retention-turn--outcome (:copier nil))
  "What a prepare led to, until gptel has sent the request or failed to.
ARRAY is the array as gptel made it.  UNINCLUDE, a function or nil,
takes back what the payload was made to ask for."
  request prepared array sent edited uninclude boundary piece)

(defvar gptel-retention-turn--requests
  (make-hash-table :test #'eq :weakness 'key)
  "The requests that concern us, by state machine.")

(defvar gptel-retention-turn--request-number 0
  "Number of the last request of this Emacs.")

(defvar gptel-retention-turn--buffers nil
  "Buffers in which conversations are kept.")

(defvar-local gptel-retention-turn--conversation nil
  "The conversation of this buffer.")
(put 'gptel-retention-turn--conversation 'permanent-local t)

(defun gptel-retention-turn--request-of (data)
  "Return the request whose payload is DATA if it concerns us, or nil."
  (and data
       (catch 'found
         (maphash (lambda (fsm request)
                    (when (eq data (plist-get (gptel-retention-host-info fsm)
                                              :data))
                      (throw 'found request)))
                  gptel-retention-turn--requests)
         nil)))

(defun gptel-retention-turn--base (buffer)
  "Return the buffer that has the text of BUFFER."
  (or (buffer-base-buffer buffer) buffer))

(defun gptel-retention-turn--find (buffer)
  "Return the conversation of BUFFER; make one if there is none.
Indirect buffers share it.  A buffer that was cloned from another one
does not, nor one whose text, and with it the id, became another."
  (let ((base (gptel-retention-turn--base buffer)))
    (with-current-buffer base
      (let ((found gptel-retention-turn--conversation))
        (unless (and found
                     (eq base (gptel-retention-turn--conversation-buffer
                               found))
                     (member (gptel-retention-turn--conversation-id found)
                             (list nil gptel-retention-id)))
          (setq gptel-retention-turn--conversation
                (make-gptel-retention-turn--conversation
                 :buffer base :owned t))))
      gptel-retention-turn--conversation)))

(defun gptel-retention-turn-last (&optional buffer)
  "Return the last outcome of a prepare in BUFFER, or nil.
It is the plist that `gptel-retention-after-prepare-functions' got."
  (when-let* ((conversation
               (buffer-local-value
                'gptel-retention-turn--conversation
                (gptel-retention-turn--base (or buffer (current-buffer))))))
    (gptel-retention-turn--conversation-last conversation)))

;;; Identity of a conversation

(defconst gptel-retention-turn--property "GPTEL_RETENTION_ID"
  "Org property that keeps the id of a conversation.")

(defun gptel-retention-turn-id (&optional buffer)
  "Return the id of the conversation in BUFFER, or nil."
  (buffer-local-value 'gptel-retention-id
                      (gptel-retention-turn--base
                       (or buffer (current-buffer)))))

(defun gptel-retention-turn--valid-id (value)
  "Return VALUE if it can be the id of a conversation, else nil."
  (and (stringp value)
       (string-match-p "\\`[[:alnum:]_-]\\{1,128\\}\\'" value)
       value))

(defun gptel-retention-turn-save-id ()
  "Write the id of this conversation into its buffer.
For `gptel-save-state-hook', so that nothing is changed by itself."
  (gptel-retention-rpc-demote "The conversation's id was not saved"
    (when-let* ((id (gptel-retention-turn-id)))
      (if (derived-mode-p 'org-mode)
          (gptel-retention-turn--save-org id)
        (save-excursion
          (save-restriction
            (add-file-local-variable 'gptel-retention-id id)))))))

(defun gptel-retention-turn--save-org (id)
  "Write ID as a property at the top of the whole Org buffer."
  (save-excursion
    (save-restriction
      (widen)
      (goto-char (point-min))
      (unless (equal id (org-entry-get (point)
                                       gptel-retention-turn--property))
        (when (org-at-heading-p)
          (org-open-line 1))
        (org-entry-put (point-min) gptel-retention-turn--property id)))))

(defun gptel-retention-turn-restore ()
  "Read back the id of this conversation, once gptel restored its file.
Mend also what gptel does not restore (rule H5)."
  (gptel-retention-rpc-demote "The conversation's state was not restored"
    (gptel-retention-host-repair-restored)
    (let ((id (if (derived-mode-p 'org-mode)
                  (save-excursion
                    (save-restriction
                      (widen)
                      (goto-char (point-min))
                      (org-entry-get (point) gptel-retention-turn--property)))
                gptel-retention-id)))
      (with-current-buffer (gptel-retention-turn--base (current-buffer))
        (setq gptel-retention-id
              (or (gptel-retention-turn--valid-id id)
                  (gptel-retention-turn--valid-id gptel-retention-id)))))))

(defun gptel-retention-turn--file (buffer)
  "Return the true name of the file of BUFFER, or the empty string."
  (let ((name (buffer-local-value 'buffer-file-truename buffer)))
    (cond ((null name) "")
          ((file-remote-p name) name)
          (t (expand-file-name name)))))

(defun gptel-retention-turn--open (conversation)
  "Open CONVERSATION if this run of the backend has not yet; return its id.
The answer may name another id: if the file or the buffer was copied, the
copy goes its own way."
  (let* ((buffer (gptel-retention-turn--conversation-buffer conversation))
         (owned (gptel-retention-turn--conversation-owned conversation))
         (file (if owned (gptel-retention-turn--file buffer) ""))
         (opened (cons (gptel-retention-rpc-generation) file)))
    (unless (equal opened
                   (gptel-retention-turn--conversation-opened conversation))
      (let* ((id (if owned
                     (gptel-retention-turn-id buffer)
                   (gptel-retention-turn--conversation-id conversation)))
             (answer (gptel-retention-rpc-call
                      (if (gptel-retention-turn--taken-p id file conversation)
                          "conversation/fork"
                        "conversation/open")
                      (list :id (or id "")
                            :file (gptel-retention-rpc-clean-string file)
                            :title (if owned
                                       (gptel-retention-rpc-clean-string
                                        (buffer-name buffer))
                                     "")))))
        (setq id (gptel-retention-turn--valid-id (plist-get answer :id)))
        (unless id
          (signal 'gptel-retention-protocol-error '("no conversation id")))
        (setf (gptel-retention-turn--conversation-id conversation) id
              (gptel-retention-turn--conversation-opened conversation) opened)
        (when (and owned (buffer-live-p buffer))
          (with-current-buffer buffer
            (setq gptel-retention-id id)))))
    (gptel-retention-turn--conversation-id conversation)))

(defun gptel-retention-turn--taken-p (id file conversation)
  "Return non-nil if ID is that of another buffer than CONVERSATION's.
It then came here with a copy of the text.  Where both visit a file, this
one FILE, the backend sees that by itself."
  (and id
       (null (gptel-retention-turn--conversation-id conversation))
       (seq-some
        (lambda (buffer)
          (when-let* (((buffer-live-p buffer))
                      (other (buffer-local-value
                              'gptel-retention-turn--conversation buffer))
                      ((eq buffer (gptel-retention-turn--conversation-buffer
                                   other)))
                      ((not (eq other conversation)))
                      ((equal id (gptel-retention-turn--conversation-id
                                  other))))
            (or (string-empty-p file)
                (string-empty-p (gptel-retention-turn--file buffer)))))
        gptel-retention-turn--buffers)))

(defun gptel-retention-turn-open ()
  "Tell the backend all of this buffer's conversation; return its id.
An error is the caller's to see."
  (gptel-retention-rpc-ensure)
  (let ((conversation (gptel-retention-turn--find (current-buffer))))
    (gptel-retention-turn--catch-up conversation)
    (gptel-retention-turn--open conversation)))

;;; Which requests concern us

(defun gptel-retention-turn--around-request (make &optional prompt &rest args)
  "Call MAKE, which is `gptel-request', with PROMPT and ARGS.
Note the request if it belongs to a conversation, or has a selection of
its own (rule H2)."
  (let ((fsm (or (plist-get args :fsm) (gptel-retention-host-make-fsm))))
    (gptel-retention-rpc-demote "The request goes out as gptel made it"
      (gptel-retention-turn--note fsm prompt
                                  (or (plist-get args :buffer)
                                      (current-buffer))))
    (apply make prompt (plist-put (copy-sequence args) :fsm fsm))))

(defun gptel-retention-turn--note (fsm prompt buffer)
  "Note the request that FSM will drive if it concerns us.
PROMPT and BUFFER are those of the request.  Without a prompt of its own
the request belongs to the conversation in BUFFER."
  (let ((selection gptel-retention-request-sections)
        (buffer (get-buffer buffer)))
    (cond
     ((null buffer))
     ((and (null prompt) (gptel-retention-turn-enabled-p buffer))
      (pcase-let ((`(,beg . ,end) (gptel-retention-host-prompt-bounds buffer)))
        (puthash fsm
                 (make-gptel-retention-turn--request
                  :id (gptel-retention-turn--new-id)
                  :conversation (gptel-retention-turn--find buffer)
                  :prompt (with-current-buffer buffer
                            (cons (copy-marker beg) (copy-marker end)))
                  :selection selection)
                 gptel-retention-turn--requests)))
     (selection
      (puthash fsm
               (make-gptel-retention-turn--request
                :id (gptel-retention-turn--new-id)
                :conversation (make-gptel-retention-turn--conversation
                               :buffer (gptel-retention-turn--base buffer))
                :selection selection)
               gptel-retention-turn--requests)))))

(defun gptel-retention-turn--before-realize (fsm)
  "Make each tool result one in the prompt of FSM, if it concerns us."
  (gptel-retention-rpc-demote "Results of tools were left in parts"
    (when-let* (((gethash fsm gptel-retention-turn--requests))
                (info (gptel-retention-host-info fsm))
                (prompt (gptel-retention-host-prompt-buffer info)))
      (with-current-buffer prompt
        (gptel-retention-host-join-results (plist-get info :buffer))))))

(defun gptel-retention-turn--new-id ()
  "Return an id for a request, unlike any other."
  (secure-hash 'md5 (format "%S %S %S %S" (random t) (emacs-pid)
                            (current-time)
                            (cl-incf gptel-retention-turn--request-number))))

;;; Around the dispatch

(defun gptel-retention-turn--around-dispatch (dispatch fsm &rest args)
  "Prepare the payload of FSM, call DISPATCH with FSM and ARGS, and commit.
An error in DISPATCH, or a quit, abandons what was prepared and goes on
unchanged."
  (let* ((request (gethash fsm gptel-retention-turn--requests))
         (outcome (and request
                       (save-match-data
                         (gptel-retention-turn--try-prepare fsm request))))
         (sent nil))
    (when request
      (gptel-retention-turn--forget-dispatch request))
    (if (null outcome)
        (apply dispatch fsm args)
      (unwind-protect
          (prog1 (apply dispatch fsm args)
            (setq sent t))
        ;; It is sent by now; what the loop adds to is gptel's own payload.
        (when-let* ((uninclude
                     (gptel-retention-turn--outcome-uninclude outcome)))
          (funcall uninclude))
        (if sent
            (gptel-retention-turn--commit outcome)
          (gptel-retention-turn--abandon fsm outcome))))))

(defun gptel-retention-turn--forget-dispatch (request)
  "Forget what is known of the last dispatch of REQUEST alone."
  (setf (gptel-retention-turn--request-plan request) nil
        (gptel-retention-turn--request-edited request) nil
        (gptel-retention-turn--request-response request) nil
        (gptel-retention-turn--request-hooked request) nil))

(defun gptel-retention-turn--try-prepare (fsm request)
  "Prepare REQUEST, which FSM drives, and return an outcome.
Return nil, with the payload as gptel made it, if there is nothing to
prepare or something went wrong."
  (let* ((conversation (gptel-retention-turn--request-conversation request))
         (buffer (gptel-retention-turn--conversation-buffer conversation))
         (started (float-time))
         (origin "buffer")
         (outcome nil)
         (note nil))
    (when (and (buffer-live-p buffer)
               (or (gptel-retention-turn-enabled-p buffer)
                   (not (gptel-retention-turn--conversation-owned
                         conversation))))
      (condition-case err
          (with-current-buffer buffer
            (gptel-retention-turn--watch fsm request)
            (when (gptel-retention-host-array
                   (gptel-retention-host-info fsm))
              (setq origin (gptel-retention-turn--origin fsm request)
                    outcome (gptel-retention-turn--prepare
                             fsm request origin)
                    note (gptel-retention-turn--outcome-prepared outcome))
              (gptel-retention-turn--tell-breaches request note)))
        (error
         (setq note (list :error err))
         (gptel-retention-rpc-report-error
          err "The request goes out as gptel made it")))
      (when note
        (setq note (append note
                           (list :request
                                 (gptel-retention-turn--request-id request)
                                 :origin origin
                                 :seconds (- (float-time) started))))
        (setf (gptel-retention-turn--conversation-last conversation) note)
        (when (buffer-live-p buffer)
          (gptel-retention-rpc-demote "A function failed after a prepare"
            (with-current-buffer buffer
              (run-hook-with-args 'gptel-retention-after-prepare-functions
                                  note))))))
    outcome))

(defun gptel-retention-turn--origin (fsm request)
  "Return where the payload of FSM comes from, \"buffer\" or \"loop\".
It is \"loop\" if it holds what the tool loop added, or what an earlier
dispatch of this REQUEST sent (rule Q2)."
  (if (or (gptel-retention-turn--request-sent request)
          (gptel-retention-host-loop-p (gptel-retention-host-info fsm)))
      "loop"
    "buffer"))

(defun gptel-retention-turn--prepare (fsm request origin)
  "Ask the backend for a plan for REQUEST, apply it and return an outcome.
FSM drives the request; ORIGIN is where its payload comes from."
  (gptel-retention-rpc-ensure)
  (gptel-retention-rpc-with-deadline gptel-retention-timeout
    (let* ((info (gptel-retention-host-info fsm))
           (conversation (gptel-retention-turn--request-conversation request))
           (array (gptel-retention-host-array info))
           (head (gptel-retention-host-head info))
           (piece (gptel-retention-turn--piece info request origin))
           (fixed (gptel-retention-turn--fixed info request origin piece))
           (base (gptel-retention-turn--base-state request origin fixed))
           prepared)
      (gptel-retention-turn--catch-up conversation)
      (setq prepared
            (gptel-retention-turn--ask conversation fixed array head base))
      (condition-case err
          (gptel-retention-turn--apply info request origin prepared
                                       array head piece fixed)
        (error
         (when (stringp (plist-get prepared :plan))
           (gptel-retention-rpc-send
            "request/abandon" (list :plan (plist-get prepared :plan))))
         (signal (car err) (cdr err)))))))

(defun gptel-retention-turn--ask (conversation fixed array head base)
  "Return the plan for ARRAY and HEAD in CONVERSATION, a plist.
FIXED are the parameters that stay when the array has to be sent again,
whole: when the backend does not know the state BASE any more, or the
conversation."
  (let ((ask (lambda (base)
               (gptel-retention-rpc-call
                "request/prepare"
                (append
                 (list :conversation (gptel-retention-turn--open conversation))
                 (gptel-retention-turn--delta array head base)
                 (gptel-retention-turn--texts fixed))))))
    (condition-case err
        (funcall ask base)
      (gptel-retention-server-error
       (pcase (gptel-retention-error-code err)
         ("resync" (funcall ask nil))
         ("unknown_conversation"
          (setf (gptel-retention-turn--conversation-opened conversation) nil)
          (funcall ask nil))
         (_ (signal (car err) (cdr err))))))))

(defun gptel-retention-turn--texts (plist)
  "Return PLIST with unibyte strings made texts of a request."
  (cl-loop for (key value) on plist by #'cddr
           collect key
           collect (if (memq key '(:span :prompt))
                       (gptel-retention-rpc-text value)
                     value)))

;;; Parameters of a prepare

(defun gptel-retention-turn--fixed (info request origin piece)
  "Return the parameters for REQUEST that do not depend on a base state.
INFO, ORIGIN and PIECE are as in `gptel-retention-turn--prepare'."
  (let* ((loopp (equal origin "loop"))
         (conversation (gptel-retention-turn--request-conversation request))
         (owned (gptel-retention-turn--conversation-owned conversation))
         (selection (gptel-retention-turn--request-selection request))
         (prompt (and owned (not loopp)
                      (gptel-retention-turn--prompt info request))))
    (append
     (list :request (gptel-retention-turn--request-id request)
           :origin origin
           :array (gptel-retention-host-array-name info)
           :identity (gptel-retention-host-identity info)
           :have (vconcat
                  (mapcar #'gptel-retention-turn--state-name
                          (gptel-retention-turn--sents request)))
           :sections (gptel-retention-turn--sections loopp selection)
           :reminders (if owned (gptel-retention-turn--reminders) [])
           :frozen (if selection t :json-false)
           :shape (if gptel-retention-delivery-shape
                      (symbol-name gptel-retention-delivery-shape)
                    "")
           :hooked (if (gptel-retention-turn--request-hooked request)
                       t :json-false)
           :context (if gptel-retention-keep-context t :json-false)
           :marks (if (and gptel-retention-plan-cache-marks
                           (gptel-retention-host-caches-p info))
                      t
                    :json-false))
     (and piece
          (list :span (gptel-retention-host-encode (vconcat (car piece)))))
     (and prompt (list :prompt prompt)))))

(defun gptel-retention-turn--piece (info request origin)
  "Return what this round added to the transcript, (MESSAGES . END), or nil.
MESSAGES is a list, END a marker.  INFO, REQUEST and ORIGIN are as in
`gptel-retention-turn--prepare'."
  (when (and (equal origin "loop")
             (gptel-retention-turn--conversation-owned
              (gptel-retention-turn--request-conversation request)))
    (gptel-retention-rpc-demote "A round's part of the buffer was not noted"
      (pcase (gptel-retention-host-span info)
        (`(,buffer ,beg ,end)
         (let* ((boundary (gptel-retention-turn--request-boundary request))
                (beg (or (and boundary (marker-position boundary)) beg))
                (end (or end beg)))
           (cons (and (< beg end)
                      (gptel-retention-host-parse info beg end t))
                 (set-marker (make-marker) end buffer))))))))

(defun gptel-retention-turn--prompt (info request)
  "Return the newest prompt, in JSON bytes, without transforms, or nil.
It is nil if the payload of INFO ends with just that.  REQUEST knows
where it stands (rule Q6)."
  (gptel-retention-rpc-demote "The prompt's own form was not noted"
    (pcase-let* ((`(,beg . ,end)
                  (gptel-retention-turn--request-prompt request))
                 (array (gptel-retention-host-array info))
                 (messages (and (marker-buffer beg) (marker-buffer end)
                                (gptel-retention-host-parse-prompt
                                 info (marker-position beg)
                                 (marker-position end))))
                 (rest (- (length array) (length messages))))
      (unless (or (null messages)
                  (and (>= rest 0)
                       (equal messages
                              (append (seq-subseq array rest) nil))))
        (gptel-retention-host-encode (vconcat messages))))))

(defun gptel-retention-turn--sections (loopp selection)
  "Return the sections for the wire, a vector.
LOOPP and SELECTION are as in `gptel-retention-sections-collect'."
  (vconcat
   (mapcar (lambda (section)
             (list :name (gptel-retention-turn--string section :name)
                   :title (gptel-retention-turn--string section :title)
                   :kind (gptel-retention-turn--string section :kind)
                   :body (gptel-retention-turn--string section :body)
                   :error (if (plist-get section :error) t :json-false)))
           (gptel-retention-sections-collect loopp selection))))

(defun gptel-retention-turn--tell-breaches (request prepared)
  "Tell what the provider will refuse in REQUEST; PREPARED is its plan.
Each rule is told once a conversation and backend."
  (let ((conversation (gptel-retention-turn--request-conversation request))
        (backend (plist-get (gptel-retention-turn--request-identity request)
                            :backend)))
    (seq-doseq (breach (plist-get prepared :breaches))
      (let* ((code (plist-get breach :code))
             (rule (cons backend code)))
        (unless (member rule
                        (gptel-retention-turn--conversation-told conversation))
          (push rule (gptel-retention-turn--conversation-told conversation))
          (message "[retention] %s will refuse this request: %s, message %s"
                   backend code (plist-get breach :detail)))))))

(defun gptel-retention-turn--reminders ()
  "Return the reminders for the wire, a vector."
  (vconcat
   (mapcar (lambda (reminder)
             (list :key (gptel-retention-turn--string reminder :key)
                   :body (or (gptel-retention-turn--string reminder :body) "")
                   :policy (gptel-retention-turn--string reminder :policy)
                   :turns (or (plist-get reminder :turns) 0)
                   :state (gptel-retention-turn--string reminder :state)))
           (gptel-retention-reminders-collect))))

(defun gptel-retention-turn--string (plist key)
  "Return the string at KEY in PLIST made fit for JSON, or nil."
  (let ((value (plist-get plist key)))
    (and (stringp value)
         (gptel-retention-rpc-clean-string value))))

;;; Only what is new travels

(defun gptel-retention-turn--current-p (state)
  "Return non-nil if the running backend may know STATE."
  (and state
       (eql (gptel-retention-turn--state-generation state)
            (gptel-retention-rpc-generation))))

(defun gptel-retention-turn--sents (request)
  "Return the sent states that are still held for REQUEST."
  (let ((conversation (gptel-retention-turn--request-conversation request)))
    (cl-remove-if-not
     #'gptel-retention-turn--current-p
     (cl-remove-duplicates
      (append (ensure-list (gptel-retention-turn--request-sent request))
              (gptel-retention-turn--conversation-sents conversation))
      :test #'eq))))

(defun gptel-retention-turn--base-state (request origin fixed)
  "Return the state that the payload of REQUEST is compared with, or nil.
ORIGIN is where the payload comes from; FIXED are its parameters."
  (let ((state (if (equal origin "loop")
                   (gptel-retention-turn--request-sent request)
                 (gptel-retention-turn--conversation-ordinary
                  (gptel-retention-turn--request-conversation request)))))
    (and (gptel-retention-turn--current-p state)
         (equal (gptel-retention-turn--state-key state)
                (plist-get fixed :array))
         (equal (gptel-retention-turn--state-api state)
                (plist-get (plist-get fixed :identity) :api))
         state)))

(defun gptel-retention-turn--common (a b)
  "Return how many elements at the start of vectors A and B are equal."
  (let ((n 0)
        (end (min (length a) (length b))))
    (while (and (< n end) (equal (aref a n) (aref b n)))
      (setq n (1+ n)))
    n))

(defun gptel-retention-turn--delta (array head base)
  "Return the parameters that say ARRAY and HEAD, given the state BASE.
ARRAY is a vector, HEAD JSON bytes.  Without BASE both are sent whole."
  (let ((keep (if base
                  (gptel-retention-turn--common
                   array (gptel-retention-turn--state-array base))
                0)))
    (append
     (and base (list :base (gptel-retention-turn--state-name base)
                     :keep keep))
     (list :tail (gptel-retention-rpc-text
                  (gptel-retention-host-encode (seq-subseq array keep))))
     (unless (and base
                  (equal head (gptel-retention-turn--state-head base)))
       (list :head (gptel-retention-rpc-text head))))))

;;; Edits

(defun gptel-retention-turn--apply
    (info request origin prepared array head piece fixed)
  "Apply the plan PREPARED to the payload of INFO and return an outcome.
ARRAY and HEAD are the payload as gptel made it; REQUEST, ORIGIN, PIECE
and FIXED as in `gptel-retention-turn--prepare'."
  (let* ((conversation (gptel-retention-turn--request-conversation request))
         (edits (gptel-retention-turn--edits prepared))
         (sent (gptel-retention-turn--edit
                array edits
                (cl-find (plist-get prepared :reuse)
                         (gptel-retention-turn--sents request)
                         :key #'gptel-retention-turn--state-name
                         :test #'equal)))
         (state (lambda (name array)
                  (unless (stringp name)
                    (signal 'gptel-retention-protocol-error
                            '("a state without a name")))
                  (make-gptel-retention-turn--state
                   :name name :array (copy-tree array t) :head head
                   :key (plist-get fixed :array)
                   :api (plist-get (plist-get fixed :identity) :api)
                   :generation (gptel-retention-rpc-generation))))
         (sent-state (funcall state (plist-get prepared :sent) sent))
         uninclude)
    (unless (stringp (plist-get prepared :plan))
      (signal 'gptel-retention-protocol-error '("no plan")))
    ;; The loop's array is none that the buffer will give again.
    (when (equal origin "buffer")
      (setf (gptel-retention-turn--conversation-ordinary conversation)
            (funcall state (plist-get prepared :ordinary) array)))
    (setf (gptel-retention-turn--request-identity request)
          (plist-get fixed :identity)
          (gptel-retention-turn--request-array request)
          (plist-get fixed :array))
    (unless (eq sent array)
      (gptel-retention-host-set-array info sent))
    (when gptel-retention-request-encrypted-reasoning
      (setq uninclude (gptel-retention-host-include
                       info (append (plist-get prepared :include) nil))))
    (make-gptel-retention-turn--outcome
     :request request :prepared prepared :array array :sent sent-state
     :edited (or uninclude (not (eq sent array))) :uninclude uninclude
     :boundary (cdr piece) :piece (car piece))))

(defun gptel-retention-turn--edits (prepared)
  "Return the edits of PREPARED, a vector of plists; empty for no change."
  (if-let* ((file (plist-get prepared :edits_file)))
      (gptel-retention-host-decode (gptel-retention-rpc-read-text file))
    (vconcat (plist-get prepared :edits))))

(defun gptel-retention-turn--edit (array edits reuse)
  "Return ARRAY after EDITS, a new vector, or ARRAY itself without edits.
EDITS are plists with one of :keep, :drop, :insert and :reuse; REUSE is
the state that the last one takes from, or nil.  Signal
`gptel-retention-protocol-error' if they do not fit."
  (if (seq-empty-p edits)
      array
    (let ((at 0) parts)
      (seq-do
       (lambda (edit)
         (let ((keep (plist-get edit :keep))
               (drop (plist-get edit :drop))
               (insert (plist-get edit :insert))
               (again (plist-get edit :reuse)))
           (cond
            ((gptel-retention-turn--count-p keep)
             (push (gptel-retention-turn--slice array at keep) parts)
             (cl-incf at keep))
            ((gptel-retention-turn--count-p drop)
             (cl-incf at drop))
            ((and (stringp insert) (not (string-empty-p insert)))
             (push (gptel-retention-host-decode insert) parts))
            ((and (gptel-retention-turn--count-p again) reuse)
             ;; A copy, since gptel changes messages in place.
             (push (copy-tree (gptel-retention-turn--slice
                               (gptel-retention-turn--state-array reuse)
                               0 again)
                              t)
                   parts))
            (t (signal 'gptel-retention-protocol-error
                       (list (format "unknown edit %s"
                                     (mapconcat (lambda (key)
                                                  (format "%s" key))
                                                (seq-filter #'keywordp edit)
                                                " "))))))))
       edits)
      (unless (= at (length array))
        (signal 'gptel-retention-protocol-error
                (list (format "edits cover %d of %d messages"
                              at (length array)))))
      (apply #'vconcat (nreverse parts)))))

(defun gptel-retention-turn--count-p (value)
  "Return non-nil if VALUE is a number of messages, at least one."
  (and (integerp value) (> value 0)))

(defun gptel-retention-turn--slice (array start count)
  "Return COUNT elements of the vector ARRAY from START on.
Signal `gptel-retention-protocol-error' if there are not so many."
  (if (> (+ start count) (length array))
      (signal 'gptel-retention-protocol-error
              (list (format "edits go beyond %d messages" (length array))))
    (seq-subseq array start (+ start count))))

;;; After the dispatch

(defun gptel-retention-turn--commit (outcome)
  "Note that the request of OUTCOME was sent, and tell the backend.
Nobody waits for the answer."
  (gptel-retention-rpc-demote "A sent request was not noted"
    (let* ((request (gptel-retention-turn--outcome-request outcome))
           (conversation (gptel-retention-turn--request-conversation request))
           (prepared (gptel-retention-turn--outcome-prepared outcome))
           (buffer (gptel-retention-turn--conversation-buffer conversation))
           (sent (gptel-retention-turn--outcome-sent outcome))
           (boundary (gptel-retention-turn--outcome-boundary outcome)))
      (setf (gptel-retention-turn--request-sent request) sent
            (gptel-retention-turn--conversation-sents conversation)
            (seq-take (cons sent (gptel-retention-turn--conversation-sents
                                  conversation))
                      2))
      (when boundary
        (setf (gptel-retention-turn--request-pieces request)
              (append (gptel-retention-turn--request-pieces request)
                      (gptel-retention-turn--outcome-piece outcome))
              (gptel-retention-turn--request-boundary request)
              boundary))
      (cond
       ((not (gptel-retention-rpc-send
              "request/commit" (list :plan (plist-get prepared :plan))))
        (gptel-retention-rpc-report
         'commit-lost "A sent request was not noted: the backend ended"))
       (t
        (setf (gptel-retention-turn--request-plan request)
              (plist-get prepared :plan)
              (gptel-retention-turn--request-edited request)
              (gptel-retention-turn--outcome-edited outcome))
        (when (and (gptel-retention-turn--conversation-owned conversation)
                   (buffer-live-p buffer)
                   (not (seq-empty-p (plist-get prepared :reminders))))
          (with-current-buffer buffer
            (gptel-retention-reminders-delivered
             (append (plist-get prepared :reminders) nil)))))))))

(defun gptel-retention-turn--abandon (fsm outcome)
  "Undo OUTCOME: the request that FSM drives was not sent."
  (gptel-retention-rpc-demote "A plan was not taken back"
    (gptel-retention-host-set-array
     (gptel-retention-host-info fsm)
     (gptel-retention-turn--outcome-array outcome))
    (gptel-retention-rpc-send
     "request/abandon"
     (list :plan (plist-get (gptel-retention-turn--outcome-prepared outcome)
                            :plan)))))

;;; The response

(defun gptel-retention-turn--before-curl-end (process &rest _)
  "Keep what curl's PROCESS received; gptel will parse and kill it."
  (gptel-retention-rpc-demote "A response was not noted"
    (gptel-retention-turn--capture
     (gptel-retention-host-curl-info process)
     (lambda () (gptel-retention-host-curl-response process)))))

(defun gptel-retention-turn--before-url-end (_backend info)
  "Keep what url.el received for the request of INFO; gptel will parse it."
  (gptel-retention-rpc-demote "A response was not noted"
    (gptel-retention-turn--capture
     info #'gptel-retention-host-url-response)))

(defun gptel-retention-turn--capture (info take)
  "Keep the response to the request of INFO, the value of function TAKE.
It is recorded soon, when the user has seen it."
  (when-let* ((request (gptel-retention-turn--request-of
                        (plist-get info :data)))
              (plan (gptel-retention-turn--request-plan request))
              ((gptel-retention-rpc-capable-p "response/record"))
              (response (funcall take)))
    (setf (gptel-retention-turn--request-response request) response)
    (gptel-retention-turn--soon
     (gptel-retention-turn--request-conversation request)
     (lambda () (gptel-retention-turn--record request plan response)))))

(defun gptel-retention-turn--record (request plan response)
  "Hand over RESPONSE, the provider's to the dispatch of REQUEST by PLAN.
Nothing is done if the provider refused it, or if the backend that made
the plan is gone."
  (when-let* (((gptel-retention-turn--current-p
                (gptel-retention-turn--request-sent request)))
              (body (gptel-retention-host-body response)))
    (gptel-retention-rpc-send
     "response/record"
     (append (gptel-retention-turn--names request)
             (list :plan plan :body (gptel-retention-rpc-text body))))))

(defun gptel-retention-turn--names (request)
  "Return the parameters that tell what REQUEST is part of."
  (list :conversation
        (gptel-retention-turn--conversation-id
         (gptel-retention-turn--request-conversation request))
        :request (gptel-retention-turn--request-id request)
        :array (gptel-retention-turn--request-array request)
        :identity (gptel-retention-turn--request-identity request)))

(defun gptel-retention-turn--before-edit-call (_backend data &rest _)
  "Note that a call of the last response in the payload DATA is changed.
Then what the model wrote is not what was carried out (rule H6)."
  (gptel-retention-rpc-demote "A changed call was not noted"
    (when-let* ((request (gptel-retention-turn--request-of data)))
      (setf (gptel-retention-turn--request-hooked request) t))))

(defun gptel-retention-turn--around-results (show results info)
  "Call SHOW, which renders RESULTS of the request of INFO, for each alone.
gptel looks up the id of a call by the name of its tool; with one call
at a time it finds the right one.  They come in the order in which the
provider made the calls (rule R4)."
  (let ((ordered
         (gptel-retention-rpc-demote "Results are shown in gptel's own order"
           (when-let* ((request (gptel-retention-turn--request-of
                                 (plist-get info :data))))
             (gptel-retention-host-order-results
              results info
              (gptel-retention-turn--request-response request))))))
    (if (null ordered)
        (funcall show results info)
      (pcase-dolist (`(,result . ,call) ordered)
        (gptel-retention-host-with-call
         info call (lambda () (funcall show (list result) info)))))))

(defun gptel-retention-turn--soon (conversation function)
  "Call FUNCTION soon, before the next prepare of CONVERSATION at the latest.
Functions are called in the order in which they came (rule Q5)."
  (setf (gptel-retention-turn--conversation-pending conversation)
        (append (gptel-retention-turn--conversation-pending conversation)
                (list function)))
  (run-at-time 0 nil #'gptel-retention-turn--catch-up conversation))

(defun gptel-retention-turn--catch-up (conversation)
  "Tell the backend what has happened in CONVERSATION so far."
  (while-let ((function
               (pop (gptel-retention-turn--conversation-pending
                     conversation))))
    (gptel-retention-rpc-demote "A response was not noted"
      (funcall function))))

;;; The end of a turn

(defun gptel-retention-turn--watch (fsm request)
  "Arrange for the end of REQUEST, which FSM drives, to be noticed."
  (unless (gptel-retention-turn--request-watched request)
    (setf (gptel-retention-turn--request-watched request) t)
    (gptel-retention-host-add-post
     fsm (lambda (&rest _)
           (gptel-retention-rpc-demote "The end of a turn was not noted"
             (gptel-retention-turn--end fsm request))))))

(defun gptel-retention-turn--end (fsm request)
  "Do what is due when REQUEST, which FSM drives, has ended."
  (let* ((info (gptel-retention-host-info fsm))
         (conversation (gptel-retention-turn--request-conversation request))
         (buffer (gptel-retention-turn--conversation-buffer conversation)))
    (gptel-retention-turn--note-refusal info request)
    (pcase (gptel-retention-turn--request-prompt request)
      (`(,beg . ,end)
       (set-marker beg nil)
       (set-marker end nil)))
    (when (and (gptel-retention-turn--conversation-owned conversation)
               (buffer-live-p buffer))
      (with-current-buffer buffer
        (when-let* ((tokens (gptel-retention-host-tokens info)))
          (gptel-retention-sections-note-tokens tokens))
        (gptel-retention-reminders-end-turn))
      ;; Later, so that the user's hooks have run.
      (when (and (gptel-retention-turn--request-sent request)
                 (eq 'done (gptel-retention-host-outcome fsm)))
        (gptel-retention-turn--soon
         conversation
         (lambda () (gptel-retention-turn--complete info request)))))
    (gptel-retention-turn--forget-dispatch request)))

(defconst gptel-retention-turn--other-refusals '(401 402 403 407 408 429)
  "HTTP errors of a client that do not speak of the request's content.")

(defun gptel-retention-turn--note-refusal (info request)
  "Tell the backend if the provider refused REQUEST as we edited it.
INFO holds the provider's answer (rule Z6)."
  (let ((status (gptel-retention-host-status info)))
    (when (and status
               (<= 400 status 499)
               (not (memq status gptel-retention-turn--other-refusals))
               (gptel-retention-turn--request-edited request))
      (gptel-retention-rpc-send
       "request/refused"
       (list :plan (gptel-retention-turn--request-plan request)
             :status status
             :body (gptel-retention-rpc-text
                    (gptel-retention-rpc-clean-string
                     (truncate-string-to-width
                      (gptel-retention-host-error info) 4000))))))))

(defun gptel-retention-turn--complete (info request)
  "Hand over what the response of REQUEST will be parsed into.
INFO is its plist.  The messages are those of the last piece alone,
unless the whole response parses into something else than its pieces
\(rule Q3)."
  (pcase (gptel-retention-host-span info)
    ((and `(,_buffer ,beg ,end) (guard end))
     (let* ((boundary (gptel-retention-turn--request-boundary request))
            (from (or (and boundary (marker-position boundary)) beg))
            (last (and (< from end)
                       (gptel-retention-host-parse info from end)))
            (whole (and (< beg end)
                        (gptel-retention-host-parse info beg end)))
            (pieces (append (gptel-retention-turn--request-pieces request)
                            last)))
       (gptel-retention-rpc-send
        "turn/complete"
        (append
         (gptel-retention-turn--names request)
         (list :span (gptel-retention-rpc-text
                      (gptel-retention-host-encode (vconcat last))))
         (unless (equal whole pieces)
           (list :whole (gptel-retention-rpc-text
                         (gptel-retention-host-encode (vconcat whole)))))))
       (when boundary
         (set-marker boundary nil))))))

;;; Turning it on and off

(defvar-local gptel-retention-turn--enabled nil
  "Non-nil in buffers whose conversation is kept.")

(defun gptel-retention-turn-enabled-p (&optional buffer)
  "Return non-nil if the conversation of BUFFER is kept."
  (buffer-local-value 'gptel-retention-turn--enabled
                      (or buffer (current-buffer))))

(defconst gptel-retention-turn--hooks
  '((gptel-save-state-hook . gptel-retention-turn-save-id)
    (gptel-mode-hook . gptel-retention-turn-restore)
    (clone-buffer-hook . gptel-retention-turn-enable)
    (change-major-mode-hook . gptel-retention-turn-disable)
    (kill-buffer-hook . gptel-retention-turn-disable))
  "What runs in a buffer whose conversation is kept.")

(defconst gptel-retention-turn--advice
  '((request :around gptel-retention-turn--around-request)
    (dispatch :around gptel-retention-turn--around-dispatch (depth . 100))
    (curl-end :before gptel-retention-turn--before-curl-end)
    (url-end :before gptel-retention-turn--before-url-end)
    (edit-call :before gptel-retention-turn--before-edit-call)
    (show-results :around gptel-retention-turn--around-results)
    (realize :before gptel-retention-turn--before-realize))
  "What runs when gptel does something while a conversation is kept.
The elements are as in `gptel-retention-host-advise'.")

;;;###autoload
(defun gptel-retention-turn-enable ()
  "Keep the conversation of this buffer from its next request on.
Start the backend, without waiting for it.  With the first buffer, gptel
is advised."
  (unless gptel-retention-turn--buffers
    (gptel-retention-host-advise gptel-retention-turn--advice))
  (cl-pushnew (current-buffer) gptel-retention-turn--buffers)
  (setq gptel-retention-turn--enabled t)
  (pcase-dolist (`(,hook . ,function) gptel-retention-turn--hooks)
    (add-hook hook function nil t))
  (gptel-retention-turn-restore)
  (gptel-retention-rpc-demote "The backend did not start"
    (gptel-retention-rpc-ensure t)))

;;;###autoload
(defun gptel-retention-turn-disable ()
  "No longer keep the conversation of this buffer.
With the last buffer, gptel is as it was before."
  (pcase-dolist (`(,hook . ,function) gptel-retention-turn--hooks)
    (remove-hook hook function t))
  (kill-local-variable 'gptel-retention-turn--enabled)
  (setq gptel-retention-turn--buffers
        (cl-delete-if-not #'buffer-live-p
                          (delq (current-buffer)
                                gptel-retention-turn--buffers)))
  (unless gptel-retention-turn--buffers
    (gptel-retention-host-unadvise gptel-retention-turn--advice)))

(provide 'gptel-retention-turn)
;;; gptel-retention-turn.el ends here
