;;; gptel-retention-sections.el --- Observations  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A section is a named observation with a current body; a reminder is
;; a piece of guidance that its policy makes due.  This file holds the
;; API to define both, the built-in ones, and the two functions that
;; collect what a request carries.  It knows nothing of the backend or
;; of how a request is sent: what is due is decided there, what is the
;; case is observed here.
;;
;; Bodies are read at the start of a turn (rule H7).  Inside the tool
;; loop only sections that are marked live are read again, never those
;; of remote buffers: that code runs in a process sentinel, where a
;; nested remote operation can wait forever.

;;; Code:

(require 'cl-lib)
(require 'project)
(require 'seq)
(require 'subr-x)

(declare-function gptel-fsm-info "ext:gptel-request" (cl-x) t)
(declare-function flymake-diagnostics "flymake" (&optional beg end))
(declare-function flymake-diagnostic-type "flymake" (diag) t)
(declare-function flymake-diagnostic-text "flymake" (diag) t)
(declare-function flymake-diagnostic-beg "flymake" (diag) t)

(defvar gptel-context)
(defvar gptel-model)
(defvar gptel-use-context)


;;; Options

(defcustom gptel-retention-sections '(environment workspace-guidance)
  "Names of the sections that a conversation is supplied with, in order.

Set it buffer-locally, or in a gptel preset with the key
`:retention-sections', to give one conversation another selection.
A section that is taken out of the list of a running conversation is
stated inactive to the model once.

`gptel-retention-list-sections' shows the names that are defined."
  :type '(repeat symbol)
  :group 'gptel-retention)

(defcustom gptel-retention-reminders '(file-changed context-use)
  "Names of the standing reminders that apply to a conversation.
Events raised with `gptel-retention-remind' need not be listed."
  :type '(repeat symbol)
  :group 'gptel-retention)

(defcustom gptel-retention-slow-section 0.05
  "Seconds after which a live section is read only once a turn.
Raise it if you prefer fresh observations to a short wait between
the requests of a turn."
  :type 'number
  :group 'gptel-retention)

(defcustom gptel-retention-guidance-files '("AGENTS.md" "CLAUDE.md")
  "File names that hold guidance for a workspace.
In each directory from the project root down to the conversation's
own, the first of these that exists is supplied."
  :type '(repeat string)
  :group 'gptel-retention)

;; 32 KiB is what the command-line agents that introduced AGENTS.md read.
(defcustom gptel-retention-guidance-limit 32768
  "Bytes of guidance that the section `workspace-guidance' holds at most.
Files nearer to the conversation's directory come first when room is
short.  What is left out is stated in the section."
  :type 'natnum
  :group 'gptel-retention)

(defcustom gptel-retention-git-timeout 1.0
  "Seconds that the section `git-state' waits for git.
Raise it for very large repositories or slow remote hosts."
  :type 'number
  :group 'gptel-retention)

(defcustom gptel-retention-git-lines 30
  "Changed files that the section `git-state' names at most."
  :type 'natnum
  :group 'gptel-retention)

(defcustom gptel-retention-journal-directory nil
  "Directory whose entries the section `journal-discovery' names, or nil."
  :type '(choice (const :tag "None" nil) directory)
  :group 'gptel-retention)

(defcustom gptel-retention-journal-entries 30
  "Entries that the section `journal-discovery' names at most."
  :type 'natnum
  :group 'gptel-retention)

(defcustom gptel-retention-skills-directories
  '("~/.agents/skills/" ".agents/skills/" ".claude/skills/")
  "Directories whose subdirectories each hold one skill in a file SKILL.md.
Relative names are taken from the root of the conversation's project.
The first of several skills of one name counts."
  :type '(repeat directory)
  :group 'gptel-retention)

(defcustom gptel-retention-memory-file nil
  "File whose first lines make the section `memory-index', or nil.
A relative name is taken from the root of the conversation's project."
  :type '(choice (const :tag "None" nil) file)
  :group 'gptel-retention)

(defcustom gptel-retention-memory-lines 200
  "Lines of `gptel-retention-memory-file' that are supplied at most."
  :type 'natnum
  :group 'gptel-retention)

(defcustom gptel-retention-diagnostics-limit 40
  "Diagnostics that the section `diagnostics' shows at most.
Errors come first, then warnings, then notes."
  :type 'natnum
  :group 'gptel-retention)

(defcustom gptel-retention-context-steps '(60 80 90)
  "Percentages of the context window at which the model is reminded.
Each step is stated once while the conversation is above it."
  :type '(repeat natnum)
  :group 'gptel-retention)

(defcustom gptel-retention-goal-finish
  "Work until the objective is met and you have checked that it is. \
Then say so, name what you checked, and stop. If something that only \
the user can supply is missing, say what, and stop."
  "How to finish a goal, as told by the section `goal-policy'."
  :type 'string
  :group 'gptel-retention)

(defvar-local gptel-retention-goal nil
  "Objective of this conversation, a string, or nil if it has none.
The sections `goal-policy' and `goal-facts' state it.  Set it with
the command `gptel-retention-set-goal'.")
(put 'gptel-retention-goal 'safe-local-variable #'string-or-null-p)


;;; Definitions

(cl-defstruct (gptel-retention-section
               (:constructor gptel-retention-section--make)
               (:copier nil))
  "A section as defined: its BODY is a function, KIND a symbol."
  name title kind body live doc)

(cl-defstruct (gptel-retention-reminder
               (:constructor gptel-retention-reminder--make)
               (:copier nil))
  "A reminder.
KEY is a string.  POLICY is `once', `every', `while' or `on'; TURNS
belongs to `every' and CONDITION to `while'.  SURVIVE and THEN belong
to events."
  key policy turns condition body survive then doc)

(defvar gptel-retention-section-definitions nil
  "Alist of section names and `gptel-retention-section' structures.")

(defvar gptel-retention-reminder-definitions nil
  "Alist of reminder names and `gptel-retention-reminder' structures.")

;;;###autoload
(cl-defun gptel-retention-define-section
    (name &key title (kind 'fact) body live doc)
  "Define the section NAME, a symbol, and return NAME.

TITLE is a short heading (default: NAME in words).  KIND is `fact'
for an observation or `guidance' for instructions that supersede
earlier ones of this name.  BODY is a function without arguments,
called in the conversation's buffer; it returns the current text, or
nil if there is nothing to tell.  If it signals an error the section
counts as unchanged and the error is reported once.

BODY is called at the start of a turn.  With LIVE non-nil it is also
called before each further request of the turn, unless the buffer is
remote or the last call took longer than
`gptel-retention-slow-section'.  DOC is a sentence for the user.

A section is supplied where `gptel-retention-sections' names it.
An existing section of this name is replaced."
  (declare (indent 1))
  (unless (and name (symbolp name))
    (signal 'wrong-type-argument (list 'symbolp name)))
  (unless (functionp body)
    (signal 'wrong-type-argument (list 'functionp body)))
  (unless (memq kind '(fact guidance))
    (signal 'wrong-type-argument (list '(fact guidance) kind)))
  (gptel-retention-sections--define
   'gptel-retention-section-definitions name
   (gptel-retention-section--make
    :name name :kind kind :body body :live live :doc doc
    :title (or title (gptel-retention-sections--words name)))))

;;;###autoload
(cl-defun gptel-retention-define-reminder (name &key policy body doc)
  "Define the standing reminder NAME, a symbol, and return NAME.

POLICY is one of
  once               deliver it once in a conversation;
  (every N)          deliver it in every Nth turn;
  (while CONDITION)  deliver it when the function CONDITION begins to
                     return non-nil, and again when it returns another
                     string: the state it is in;
  on                 BODY is called at the start of a turn and raises
                     events with `gptel-retention-remind'.
BODY is a string, or a function without arguments that returns one, or
nil if nothing is to be said.  All functions are called in the
conversation's buffer.  DOC is a sentence for the user.

A standing reminder applies where `gptel-retention-reminders' names
it.  An existing one of this name is replaced."
  (declare (indent 1))
  (unless (and name (symbolp name))
    (signal 'wrong-type-argument (list 'symbolp name)))
  (when (and (eq policy 'on) (not (functionp body)))
    (signal 'wrong-type-argument (list 'functionp body)))
  (let ((reminder (gptel-retention-reminders--make
                   (symbol-name name) policy body)))
    (setf (gptel-retention-reminder-doc reminder) doc)
    (gptel-retention-sections--define
     'gptel-retention-reminder-definitions name reminder)))

(defun gptel-retention-sections--define (alist name definition)
  "Put DEFINITION under NAME into the variable ALIST and return NAME.
A new name goes to the end."
  (if-let* ((cell (assq name (symbol-value alist))))
      (setcdr cell definition)
    (set alist (append (symbol-value alist) (list (cons name definition)))))
  name)

(defun gptel-retention-reminders--make (key policy body)
  "Return a reminder of KEY, POLICY as its definer wrote it, and BODY."
  (unless (or (stringp body) (functionp body))
    (signal 'wrong-type-argument (list '(stringp functionp) body)))
  (pcase policy
    ((or 'once 'on)
     (gptel-retention-reminder--make :key key :policy policy :body body))
    (`(every ,(and turns (pred natnump) (guard (> turns 0))))
     (gptel-retention-reminder--make
      :key key :policy 'every :turns turns :body body))
    (`(while ,(and condition (pred functionp)))
     (gptel-retention-reminder--make
      :key key :policy 'while :condition condition :body body))
    (_ (error "[retention] Not a reminder policy: %S" policy))))

(defun gptel-retention-sections--words (name)
  "Return the symbol NAME as a title: words, the first capitalized."
  (let ((words (string-replace "-" " " (symbol-name name))))
    (concat (upcase (substring words 0 1)) (substring words 1))))


;;; State of a conversation

(cl-defstruct (gptel-retention-sections--state
               (:constructor gptel-retention-sections--make-state)
               (:copier nil))
  "What a conversation's buffer knows between requests."
  selection                         ; of the turn under way
  preset                            ; (SELECTION) from a preset in the prompt
  (readings (make-hash-table :test #'eq)) ; section name -> reading
  reported                          ; causes that were reported already
  in-loop                           ; whether the last request was in a loop
  fresh                             ; whether a turn began, checks are due
  timer                             ; that refreshes a remote buffer's sections
  events                            ; reminders raised, oldest first
  standing                          ; every and while reminders of this buffer
  last                              ; standing reminders as last collected
  (files (make-hash-table :test #'equal)) ; file -> stamp when it was read
  bytes                             ; of the conversation as last sent
  tokens                            ; of the context as the provider counted
  goal)                             ; a `gptel-retention-sections--goal'

(cl-defstruct (gptel-retention-sections--reading (:copier nil))
  "What reading a section gave: BODY or PROBLEM, and the SECONDS it took."
  body problem (seconds 0))

(cl-defstruct (gptel-retention-sections--goal (:copier nil))
  "Counters of a goal: its TEXT, when it began, TURNS and REQUESTS since."
  text since (turns 0) (requests 0))

(defvar-local gptel-retention-sections--state nil
  "The `gptel-retention-sections--state' of this conversation.")

(defun gptel-retention-sections--state ()
  "Return the state of the conversation in this buffer, made when needed."
  (or gptel-retention-sections--state
      (setq gptel-retention-sections--state
            (gptel-retention-sections--make-state))))

(defun gptel-retention-sections-reset ()
  "Forget what this buffer knows of sections and reminders."
  (when-let* ((state gptel-retention-sections--state)
              (timer (gptel-retention-sections--state-timer state)))
    (cancel-timer timer))
  (setq gptel-retention-sections--state nil))

(defun gptel-retention-sections--report (cause format &rest args)
  "Show FORMAT with ARGS, once for CAUSE in this conversation."
  (let ((state (gptel-retention-sections--state)))
    (unless (member cause (gptel-retention-sections--state-reported state))
      (push cause (gptel-retention-sections--state-reported state))
      (message "[retention] %s" (apply #'format-message format args)))))

;; Raw bytes and lone surrogates have no JSON form.
(defun gptel-retention-sections--clean (text)
  "Return TEXT as plain Unicode, or nil if it is blank."
  (unless (stringp text)
    (signal 'wrong-type-argument (list 'stringp text)))
  (let ((text (substring-no-properties
               (if (multibyte-string-p text)
                   text
                 (decode-coding-string text 'utf-8 t)))))
    (unless (string-blank-p text)
      (replace-regexp-in-string
       (rx (any (#xd800 . #xdfff) (#x110000 . #x3fffff))) "\ufffd" text
       t t))))

(defun gptel-retention-sections--call (function)
  "Call FUNCTION in this buffer; return its text, cleaned, or nil."
  (save-match-data
    (save-excursion
      (when-let* ((text (funcall function)))
        (gptel-retention-sections--clean text)))))


;;; Collecting sections

;;;###autoload
(defun gptel-retention-sections-collect (loopp &optional selection)
  "Return the sections of this conversation as a vector of plists.

Each is (:name STRING :title STRING :kind \"fact\"|\"guidance\"
:body STRING|:null), in the order of the selection, with `:error' t if
its body could not be read.  The selection is SELECTION, a list of
names, else that of the conversation.

LOOPP says that the request is inside a tool loop, where the selection
and the bodies of the turn's start are used again, except those of
live sections."
  (let* ((state (gptel-retention-sections--state))
         (names (or selection
                    (gptel-retention-sections--names state loopp))))
    (setf (gptel-retention-sections--state-in-loop state) loopp)
    (unless loopp
      (setf (gptel-retention-sections--state-fresh state) t)
      (unless selection
        (setf (gptel-retention-sections--state-selection state)
              (list names))))
    (vconcat
     (mapcar (lambda (name)
               (gptel-retention-sections--collect-one state name loopp))
             (gptel-retention-sections--unique names)))))

(defun gptel-retention-sections--names (state loopp)
  "Return the names selected in this buffer.
STATE remembers those of the turn, which stay while LOOPP."
  (if-let* ((turn (and loopp
                       (gptel-retention-sections--state-selection state))))
      (car turn)
    (let ((preset (gptel-retention-sections--state-preset state)))
      (setf (gptel-retention-sections--state-preset state) nil)
      (if preset (car preset) gptel-retention-sections))))

(defun gptel-retention-sections--unique (names)
  "Return NAMES as symbols, each once."
  (delete-dups
   (mapcar (lambda (name) (if (stringp name) (intern name) name)) names)))

(defun gptel-retention-sections--collect-one (state name loopp)
  "Return the section NAME as a plist.
STATE holds earlier readings; LOOPP as in
`gptel-retention-sections-collect'."
  (if-let* ((section (alist-get name gptel-retention-section-definitions)))
      (let* ((reading (gptel-retention-sections--current state section loopp))
             (problem (gptel-retention-sections--reading-problem reading)))
        `( :name ,(symbol-name name)
           :title ,(gptel-retention-section-title section)
           :kind ,(symbol-name (gptel-retention-section-kind section))
           :body ,(or (and (not problem)
                           (gptel-retention-sections--reading-body reading))
                      :null)
           ,@(and problem '(:error t))))
    (gptel-retention-sections--report
     (list 'undefined name) "Section `%s' is selected but not defined" name)
    `( :name ,(symbol-name name)
       :title ,(gptel-retention-sections--words name)
       :kind "fact" :body :null :error t)))

(defun gptel-retention-sections--current (state section loopp)
  "Return the reading of SECTION that counts now.
It is one of STATE, or a new one; LOOPP as in
`gptel-retention-sections-collect'."
  (let* ((name (gptel-retention-section-name section))
         (readings (gptel-retention-sections--state-readings state))
         (reading (gethash name readings)))
    (cond
     ((and loopp (file-remote-p default-directory))
      (when (gptel-retention-section-live section)
        (gptel-retention-sections--refresh-later state))
      (or reading (make-gptel-retention-sections--reading
                   :problem "not read yet")))
     ((and loopp reading
           (or (not (gptel-retention-section-live section))
               (> (gptel-retention-sections--reading-seconds reading)
                  gptel-retention-slow-section)))
      reading)
     (t (puthash name (gptel-retention-sections--read section) readings)))))

(defun gptel-retention-sections--read (section)
  "Read SECTION in this buffer and return the reading.
An error is reported once and becomes part of the reading."
  (let ((start (float-time))
        (collecting gc-elapsed)
        (reading (make-gptel-retention-sections--reading)))
    (condition-case err
        (setf (gptel-retention-sections--reading-body reading)
              (gptel-retention-sections--call
               (gptel-retention-section-body section)))
      (error
       (let ((name (gptel-retention-section-name section))
             (problem (error-message-string err)))
         (setf (gptel-retention-sections--reading-problem reading) problem)
         (gptel-retention-sections--report
          (list 'section name)
          "Section `%s' could not be read and counts as unchanged: %s"
          name problem))))
    ;; A garbage collection that happens to fall here is not the section's.
    (setf (gptel-retention-sections--reading-seconds reading)
          (- (float-time) start (- gc-elapsed collecting)))
    reading))

(defun gptel-retention-sections-read (name)
  "Read the section NAME now, for the user, and return what that gave.
It is (BODY PROBLEM SECONDS): BODY and PROBLEM are strings or nil."
  (if-let* ((section (alist-get name gptel-retention-section-definitions))
            (reading (gptel-retention-sections--read section)))
      (list (gptel-retention-sections--reading-body reading)
            (gptel-retention-sections--reading-problem reading)
            (gptel-retention-sections--reading-seconds reading))
    (list nil "not defined" 0)))

(defun gptel-retention-sections--refresh-later (state)
  "Read the live sections of this remote buffer again, outside a sentinel.
STATE holds the timer; one is pending at most."
  (unless (gptel-retention-sections--state-timer state)
    (setf (gptel-retention-sections--state-timer state)
          (run-with-idle-timer 0.2 nil #'gptel-retention-sections--refresh
                               (current-buffer)))))

(defun gptel-retention-sections--refresh (buffer)
  "Read the live sections of BUFFER; after a failure the last reading stays."
  (when (buffer-live-p buffer)
    (with-current-buffer buffer
      (when-let* ((state gptel-retention-sections--state))
        (setf (gptel-retention-sections--state-timer state) nil)
        (dolist (name (gptel-retention-sections--unique
                       (gptel-retention-sections--names state t)))
          (when-let* ((section
                       (alist-get name gptel-retention-section-definitions))
                      ((gptel-retention-section-live section))
                      (reading (gptel-retention-sections--read section))
                      ((not (gptel-retention-sections--reading-problem
                             reading))))
            (puthash name reading
                     (gptel-retention-sections--state-readings state))))))))

;; A preset in the prompt (@name) sets variables only in gptel's copy of
;; the buffer, which is gone when the request is dispatched.
(defun gptel-retention-sections-note-preset (fsm)
  "Keep the selection that a preset in the prompt of FSM made.
For `gptel-prompt-transform-functions', after the presets."
  (let ((buffer (plist-get (gptel-fsm-info fsm) :buffer))
        (selection (and (local-variable-p 'gptel-retention-sections)
                        (list gptel-retention-sections))))
    (when (and (buffer-live-p buffer) (not (eq buffer (current-buffer))))
      (with-current-buffer buffer
        (when gptel-retention-sections--state
          (setf (gptel-retention-sections--state-preset
                 gptel-retention-sections--state)
                selection))))))


;;; Raising and collecting reminders

;;;###autoload
(cl-defun gptel-retention-remind
    (key body &key (policy 'on) survive buffer then)
  "Remind the model of BODY in the next request of a conversation.

KEY is a string or symbol: what is raised again under one key before
it was delivered takes the place of the earlier.  BODY is a string, or
a function that returns one or nil, called in the conversation's
buffer.  The conversation is that of BUFFER, by default the current.

POLICY is `on' (an event, the default), `once', (every N) or (while
CONDITION), see `gptel-retention-define-reminder'.  The first
two belong to the turn in which they are raised, or to the next if
none is under way: they are dropped when it ends, unless SURVIVE is
non-nil.  The others stay until `gptel-retention-cancel-reminder'.

THEN is a function that is called, in that buffer, when an event was
delivered."
  (with-current-buffer (or buffer (current-buffer))
    (let* ((state (gptel-retention-sections--state))
           (key (gptel-retention-reminders--key key))
           (reminder (gptel-retention-reminders--make key policy body))
           (other (gptel-retention-reminders--find state key)))
      (setf (gptel-retention-reminder-survive reminder) survive
            (gptel-retention-reminder-then reminder) then)
      (if (memq (gptel-retention-reminder-policy reminder) '(on once))
          (setf (gptel-retention-sections--state-events state)
                (gptel-retention-reminders--put
                 reminder other
                 (gptel-retention-sections--state-events state)))
        (setf (gptel-retention-sections--state-standing state)
              (gptel-retention-reminders--put
               reminder other
               (gptel-retention-sections--state-standing state)))))
    nil))

(defun gptel-retention-cancel-reminder (key &optional buffer)
  "Take back the undelivered reminder KEY in BUFFER (default: current)."
  (with-current-buffer (or buffer (current-buffer))
    (when-let* ((state gptel-retention-sections--state)
                (reminder (gptel-retention-reminders--find
                           state (gptel-retention-reminders--key key))))
      (cl-callf2 delq reminder (gptel-retention-sections--state-events state))
      (cl-callf2 delq reminder
        (gptel-retention-sections--state-standing state)))
    nil))

(defun gptel-retention-reminders--key (key)
  "Return KEY, a string or symbol, as a string."
  (cond ((stringp key) key)
        ((and key (symbolp key)) (symbol-name key))
        (t (signal 'wrong-type-argument (list 'stringp key)))))

(defun gptel-retention-reminders--find (state key)
  "Return the reminder of STATE that was raised under KEY, or nil."
  (cl-find key (append (gptel-retention-sections--state-events state)
                       (gptel-retention-sections--state-standing state))
           :key #'gptel-retention-reminder-key :test #'equal))

(defun gptel-retention-reminders--put (reminder other list)
  "Return LIST with REMINDER in the place of OTHER, or at the end."
  (if (memq other list)
      (cl-substitute reminder other list)
    (append list (list reminder))))

;;;###autoload
(defun gptel-retention-reminders-collect ()
  "Return the reminders of this conversation as a vector of plists.

Each is (:key STRING :body STRING :policy STRING :turns N :state S)
where S is a string or :null.  Which of them are due is not decided
here.  Call it after `gptel-retention-sections-collect'."
  (let* ((state (gptel-retention-sections--state))
         (loopp (gptel-retention-sections--state-in-loop state))
         (named (gptel-retention-reminders--named)))
    (when (gptel-retention-sections--state-fresh state)
      (setf (gptel-retention-sections--state-fresh state) nil)
      (dolist (reminder named)
        (when (eq (gptel-retention-reminder-policy reminder) 'on)
          (gptel-retention-reminders--guard
           reminder (gptel-retention-reminder-body reminder)))))
    (unless (and loopp (file-remote-p default-directory))
      (setf (gptel-retention-sections--state-last state)
            (delq nil
                  (mapcar #'gptel-retention-reminders--plist
                          (append
                           (cl-remove 'on named
                                      :key #'gptel-retention-reminder-policy)
                           (gptel-retention-sections--state-standing
                            state))))))
    (vconcat
     (gptel-retention-sections--state-last state)
     (delq nil (mapcar #'gptel-retention-reminders--plist
                       (gptel-retention-sections--state-events state))))))

(defun gptel-retention-reminders--named ()
  "Return the standing reminders that this buffer's selection names."
  (delq nil
        (mapcar (lambda (name)
                  (or (alist-get name gptel-retention-reminder-definitions)
                      (gptel-retention-sections--report
                       (list 'undefined-reminder name)
                       "Reminder `%s' is selected but not defined" name)))
                (delete-dups (copy-sequence gptel-retention-reminders)))))

(defun gptel-retention-reminders--guard (reminder function)
  "Call FUNCTION for REMINDER and return its value.
On an error report it once and return `failed'."
  (condition-case err
      (save-match-data (save-excursion (funcall function)))
    (error
     (let ((key (gptel-retention-reminder-key reminder)))
       (gptel-retention-sections--report
        (list 'reminder key) "Reminder `%s' failed: %s"
        key (error-message-string err)))
     'failed)))

(defun gptel-retention-reminders--plist (reminder)
  "Return REMINDER as it crosses to the backend, or nil without a text."
  (let* ((condition (gptel-retention-reminder-condition reminder))
         (state (and condition
                     (gptel-retention-reminders--guard reminder condition)))
         (body (cond ((eq state 'failed) 'failed)
                     ((and condition (null state)) "")
                     (t (gptel-retention-reminders--body reminder)))))
    (when (stringp body)
      (list :key (gptel-retention-reminder-key reminder)
            :body body
            :policy (symbol-name (gptel-retention-reminder-policy reminder))
            :turns (or (gptel-retention-reminder-turns reminder) 0)
            :state (cond ((stringp state) state) (state "t") (t :null))))))

(defun gptel-retention-reminders--body (reminder)
  "Return the text of REMINDER, or nil if it has none now."
  (let ((body (gptel-retention-reminder-body reminder)))
    (if (stringp body)
        (gptel-retention-sections--clean body)
      (let ((text (gptel-retention-reminders--guard
                   reminder
                   (lambda () (gptel-retention-sections--call body)))))
        (and (stringp text) text)))))

;;;###autoload
(defun gptel-retention-reminders-delivered (keys)
  "Note that a committed request of this buffer carried the reminders KEYS.
KEYS is a sequence of strings."
  (when-let* ((state gptel-retention-sections--state))
    (dolist (reminder (gptel-retention-sections--state-events state))
      (when (seq-contains-p keys (gptel-retention-reminder-key reminder))
        (cl-callf2 remq reminder
          (gptel-retention-sections--state-events state))
        (when-let* ((then (gptel-retention-reminder-then reminder)))
          (gptel-retention-reminders--guard reminder then))))
    nil))

;;;###autoload
(defun gptel-retention-reminders-end-turn ()
  "Note that a turn of this buffer ended: drop its undelivered events.
Those that were marked to survive stay (rule D8)."
  (when-let* ((state gptel-retention-sections--state))
    (cl-callf2 cl-remove-if-not #'gptel-retention-reminder-survive
               (gptel-retention-sections--state-events state))
    (when-let* ((goal (gptel-retention-sections--state-goal state)))
      (cl-incf (gptel-retention-sections--goal-turns goal)))
    nil))

(defun gptel-retention-sections-note-prepared (prepared)
  "Count a request of this conversation that was planned as PREPARED.
For `gptel-retention-after-prepare-functions'."
  (let ((state (gptel-retention-sections--state))
        (total (plist-get prepared :total)))
    (when (and (integerp total) (> total 0))
      (setf (gptel-retention-sections--state-bytes state) total))
    (when-let* ((goal (gptel-retention-sections--state-goal state)))
      (cl-incf (gptel-retention-sections--goal-requests goal)))))

(defun gptel-retention-sections-note-tokens (tokens)
  "Note that the provider counted TOKENS in this conversation's context.
TOKENS is the sum of all input, cached or not, and the output of the
last request, or nil if it reported none."
  (setf (gptel-retention-sections--state-tokens
         (gptel-retention-sections--state))
        tokens))


;;; Help for bodies

(defun gptel-retention-sections--root ()
  "Return the root of this buffer's project, or `default-directory'."
  (file-name-as-directory
   (expand-file-name
    (if-let* ((project (project-current)))
        (project-root project)
      default-directory))))

(defun gptel-retention-sections--head (file limit)
  "Return (TEXT . BYTES) of FILE: its first LIMIT bytes and its size."
  (let ((size (file-attribute-size (file-attributes (file-truename file)))))
    (with-temp-buffer
      (set-buffer-multibyte nil)
      (insert-file-contents-literally file nil 0 (min limit size))
      (when (< limit size)
        ;; Leave out a character that the limit cuts.
        (goto-char (point-max))
        (skip-chars-backward "\200-\277" (- (point) 3))
        (unless (or (bobp) (< (char-before) ?\300))
          (delete-region (1- (point)) (point-max))))
      (cons (string-remove-prefix
             "\ufeff" (decode-coding-string (buffer-string) 'utf-8 t))
            size))))

(defun gptel-retention-sections--line (text width)
  "Return TEXT as one line of at most WIDTH columns."
  (truncate-string-to-width
   (string-trim (replace-regexp-in-string "[ \t\n\r\f]+" " " text))
   width nil nil "…"))

(defun gptel-retention-sections--run (seconds program &rest args)
  "Run PROGRAM with ARGS in `default-directory' for at most SECONDS.
Return its output, or nil if it exits with a failure.  Signal an error
if it takes longer."
  (let* ((deadline (+ (float-time) seconds))
         (directory default-directory)
         (coding-system-for-read 'utf-8)
         (process-environment
          `("GIT_OPTIONAL_LOCKS=0" "LC_ALL=C" ,@process-environment)))
    (with-temp-buffer
      (setq default-directory directory)
      (let ((process (make-process
                      :name (concat "gptel-retention " program)
                      :buffer (current-buffer) :command (cons program args)
                      :connection-type 'pipe :noquery t :sentinel #'ignore
                      :file-handler t)))
        (unwind-protect
            (progn
              (while (and (process-live-p process)
                          (< (float-time) deadline))
                (accept-process-output process 0.02 nil t))
              (when (process-live-p process)
                (error "%s did not answer within %s s" program seconds))
              (while (accept-process-output process 0 nil t))
              (and (eql 0 (process-exit-status process)) (buffer-string)))
          (delete-process process))))))

(defun gptel-retention-sections--more (left what)
  "Return the lines that say that LEFT more WHAT are not shown."
  (and (> left 0) (list (format "(%d more %s not shown)" left what))))


;;; Environment

(defun gptel-retention-sections-environment ()
  "Return the date, system and directory of this conversation.
The date has day granularity, so that it changes once a day."
  (let ((system-time-locale "C"))
    (string-join
     (list (format-time-string "Date: %F (%A)")
           (format "Operating system: %s (%s)%s"
                   system-type system-configuration
                   (if (file-remote-p default-directory)
                       ", where Emacs runs" ""))
           (gptel-retention-sections--place))
     "\n")))

(defun gptel-retention-sections--place ()
  "Return lines that name the working directory and its host."
  (if (file-remote-p default-directory)
      (format "Working directory: %s\nHost: %s%s, remote, reached with %s"
              (file-remote-p default-directory 'localname)
              (if-let* ((user (file-remote-p default-directory 'user)))
                  (concat user "@") "")
              (file-remote-p default-directory 'host)
              (file-remote-p default-directory 'method))
    (format "Working directory: %s\nHost: local"
            (expand-file-name default-directory))))


;;; Workspace guidance

(defun gptel-retention-sections-guidance ()
  "Return the guidance files of this workspace, broad to narrow, or nil."
  (let* ((files (delq nil (mapcar #'gptel-retention-sections--guidance-file
                                  (gptel-retention-sections--directories))))
         (left gptel-retention-guidance-limit)
         texts)
    ;; The narrowest file is the most specific: it gets its room first.
    (dolist (file (reverse files))
      (pcase-let* ((`(,text . ,size)
                    (gptel-retention-sections--head file left))
                   (shown (min left size)))
        (push (gptel-retention-sections--guidance-text file text shown size)
              texts)
        (cl-decf left shown)))
    (and texts (string-join texts "\n\n"))))

(defun gptel-retention-sections--directories ()
  "Return the directories from the project root down to this buffer's."
  (let* ((here (file-name-as-directory (expand-file-name default-directory)))
         (root (gptel-retention-sections--root))
         (directory here)
         (found (list here)))
    (while (and (not (equal directory root))
                (string-prefix-p root directory))
      (setq directory (file-name-directory (directory-file-name directory)))
      (push directory found))
    (if (equal directory root) found (list root here))))

(defun gptel-retention-sections--guidance-file (directory)
  "Return the guidance file of DIRECTORY, or nil."
  (cl-some (lambda (name)
             (let ((file (expand-file-name name directory)))
               (and (file-regular-p file) (file-readable-p file) file)))
           gptel-retention-guidance-files))

(defun gptel-retention-sections--guidance-text (file text shown size)
  "Return TEXT of FILE with a heading.
SHOWN of its SIZE bytes are in TEXT, which is stated if some are not."
  (let ((name (file-local-name file)))
    (cond
     ((= shown size)
      (format "From %s:\n\n%s" name (string-trim-right text)))
     ((string-blank-p text)
      (format "%s (%d bytes) is not shown: no room was left." name size))
     (t (format "From %s:\n\n%s\n\n(cut: the first %d of %d bytes of %s)"
                name text (string-bytes text) size name)))))


;;; Git

(defun gptel-retention-sections-git ()
  "Return the branch and the changed files of this work tree, or nil."
  (when (locate-dominating-file default-directory ".git")
    (when-let* ((output (gptel-retention-sections--run
                         gptel-retention-git-timeout
                         "git" "-c" "core.quotePath=false"
                         "status" "--porcelain" "--branch"))
                (lines (split-string output "\n" t)))
      (let ((changes
             (seq-filter (lambda (line)
                           (string-match-p "\\`[ MTADRCU?]\\{2\\} " line))
                         lines)))
        (string-join
         (cons (gptel-retention-sections--git-branch (car lines))
               (gptel-retention-sections--git-changes changes))
         "\n")))))

(defun gptel-retention-sections--git-branch (line)
  "Return what is known of the branch from LINE, the first of git's status."
  (pcase (string-remove-prefix "## " line)
    ("HEAD (no branch)" "Branch: none (detached HEAD)")
    ((rx bos "No commits yet on " (let branch (+ any)))
     (format "Branch: %s (no commits yet)" branch))
    ((rx bos (let branch (+? any)) "..." (let upstream (+ (not " ")))
         (? " [" (let distance (+ any)) "]") eos)
     (format "Branch: %s (tracks %s%s)" branch upstream
             (if distance (concat ", " distance) "")))
    (branch (format "Branch: %s" branch))))

(defun gptel-retention-sections--git-changes (lines)
  "Return lines of the section from LINES, which name changed files."
  (if (null lines)
      '("The work tree is clean.")
    `(,(format "Changed files (%d), in git's short format:" (length lines))
      ,@(seq-take lines gptel-retention-git-lines)
      ,@(gptel-retention-sections--more
         (- (length lines) gptel-retention-git-lines) "files"))))


;;; Goal

(defun gptel-retention-sections-goal-policy ()
  "Return the objective of this conversation and how to finish it, or nil."
  (when gptel-retention-goal
    (format "Objective: %s\n\nHow to finish: %s"
            (string-trim gptel-retention-goal) gptel-retention-goal-finish)))

(defun gptel-retention-sections-goal-facts ()
  "Return the counters of this conversation's goal, or nil."
  (let ((state (gptel-retention-sections--state)))
    (if (null gptel-retention-goal)
        (setf (gptel-retention-sections--state-goal state) nil)
      (let ((goal (gptel-retention-sections--goal state)))
        (format "Turns completed: %d\nRequests sent: %d\nTime since it was \
set: %s"
                (gptel-retention-sections--goal-turns goal)
                (gptel-retention-sections--goal-requests goal)
                (gptel-retention-sections--duration
                 (- (float-time)
                    (gptel-retention-sections--goal-since goal))))))))

(defun gptel-retention-sections--goal (state)
  "Return the counters in STATE, begun anew if the goal is another."
  (let ((goal (gptel-retention-sections--state-goal state)))
    (if (and goal (equal (gptel-retention-sections--goal-text goal)
                         gptel-retention-goal))
        goal
      (setf (gptel-retention-sections--state-goal state)
            (make-gptel-retention-sections--goal
             :text gptel-retention-goal :since (float-time))))))

(defun gptel-retention-sections--duration (seconds)
  "Return SECONDS in words, the longer the coarser."
  (let ((minutes (floor seconds 60)))
    (cond ((< minutes 5) "less than 5 minutes")
          ((< minutes 60) (format "%d minutes" (* 5 (/ minutes 5))))
          ((< minutes 120) "1 hour")
          (t (format "%d hours" (/ minutes 60))))))


;;; Journal, skills, memory

(defun gptel-retention-sections-journal ()
  "Return the entries of the journal directory, or nil if none is configured."
  (when gptel-retention-journal-directory
    (let* ((directory (file-name-as-directory
                       (expand-file-name gptel-retention-journal-directory
                                         (gptel-retention-sections--root))))
           (names (and (file-directory-p directory)
                       (gptel-retention-sections--entries directory)))
           (count (length names)))
      (cond
       ((not (file-directory-p directory))
        (format "The journal directory %s does not exist." directory))
       ((zerop count)
        (format "The journal directory %s holds no entries." directory))
       (t
        (string-join
         `(,(format "The journal directory %s holds %d %s, by name, the last \
first:"
                    directory count (if (= count 1) "entry" "entries"))
           ,@(mapcar (lambda (name) (concat "- " name))
                     (seq-take names gptel-retention-journal-entries))
           ,@(gptel-retention-sections--more
              (- count gptel-retention-journal-entries) "entries"))
         "\n"))))))

(defun gptel-retention-sections--entries (directory)
  "Return the names in DIRECTORY that are no backups, the last first."
  (nreverse
   (seq-remove (lambda (name)
                 (or (backup-file-name-p name) (auto-save-file-name-p name)))
               (directory-files directory nil
                                directory-files-no-dot-files-regexp))))

(defun gptel-retention-sections-skills ()
  "Return a line for each skill of the configured directories, or nil."
  (let ((root (gptel-retention-sections--root))
        seen lines)
    (dolist (directory gptel-retention-skills-directories)
      (dolist (file (file-expand-wildcards
                     (expand-file-name "*/SKILL.md"
                                       (expand-file-name directory root))))
        (pcase-let ((`(,name . ,description)
                     (gptel-retention-sections--skill file)))
          (unless (member name seen)
            (push name seen)
            (push (format "- %s (%s)%s" name (file-local-name file)
                          (if description (concat ": " description) ""))
                  lines)))))
    (and lines (string-join (nreverse lines) "\n"))))

(defun gptel-retention-sections--skill (file)
  "Return (NAME . DESCRIPTION) from the front matter of FILE.
NAME falls back to the directory's; DESCRIPTION is a line or nil."
  ;; Descriptions have 1,024 characters at most; 16 KB holds any header.
  (with-temp-buffer
    (insert (car (gptel-retention-sections--head file 16384)))
    (goto-char (point-min))
    (let ((end (and (looking-at "---[ \t]*\n")
                    (save-excursion
                      (forward-line)
                      (re-search-forward "^---[ \t]*$" nil t)))))
      (cons (or (gptel-retention-sections--yaml "name" end)
                (file-name-nondirectory
                 (directory-file-name (file-name-directory file))))
            (gptel-retention-sections--yaml "description" end)))))

(defun gptel-retention-sections--yaml (key end)
  "Return the value of KEY in a header that ends at END, as one line, or nil.
A value may go on in indented lines."
  (goto-char (point-min))
  (when (and end
             (re-search-forward
              (rx-to-string
               `(seq bol ,key ":" (group (* nonl) (* "\n" (+ (any " \t"))
                                                     (+ nonl)))))
              end t))
    (let ((value (string-trim (match-string 1))))
      (setq value (replace-regexp-in-string "\\`[|>][-+0-9]*[ \t]*\n" ""
                                            value))
      (when (string-match "\\`\\([\"']\\)\\(\\(?:.\\|\n\\)*\\)\\1\\'" value)
        (setq value (match-string 2 value)))
      (unless (string-blank-p value)
        (gptel-retention-sections--line value 300)))))

(defun gptel-retention-sections-memory ()
  "Return the first lines of the memory file, or nil if none is configured."
  (when gptel-retention-memory-file
    (let ((file (expand-file-name gptel-retention-memory-file
                                  (gptel-retention-sections--root))))
      (if (not (file-readable-p file))
          (format "The memory file %s does not exist." file)
        ;; 400 bytes for each line are more than prose has.
        (pcase-let* ((limit (* 400 gptel-retention-memory-lines))
                     (`(,text . ,size)
                      (gptel-retention-sections--head file limit))
                     (lines (split-string text "\n"))
                     (shown (seq-take lines gptel-retention-memory-lines))
                     (rest (nthcdr gptel-retention-memory-lines lines)))
          (format "From %s:\n\n%s%s" (file-local-name file)
                  (string-trim-right (string-join shown "\n"))
                  (if (and (<= size limit) (seq-every-p #'string-empty-p rest))
                      ""
                    (format "\n\n(cut: the first %d lines of %d bytes)"
                            (length shown) size))))))))


;;; Diagnostics

(defun gptel-retention-sections-diagnostics ()
  "Return the Flymake diagnostics of this project's buffers, or nil."
  (let* ((root (gptel-retention-sections--root))
         (found (sort (mapcan
                       (lambda (buffer)
                         (gptel-retention-sections--buffer-diagnostics
                          buffer root))
                       (buffer-list))
                      #'gptel-retention-sections--diagnostic<)))
    (when found
      (string-join
       (append
        (mapcar #'cddr (seq-take found gptel-retention-diagnostics-limit))
        (gptel-retention-sections--more
         (- (length found) gptel-retention-diagnostics-limit) "diagnostics"))
       "\n"))))

(defun gptel-retention-sections--buffer-diagnostics (buffer root)
  "Return the diagnostics of BUFFER if it visits a file below ROOT.
Each is (RANK PLACE . LINE): RANK 0 is an error, PLACE sorts by file
and line."
  (let ((file (buffer-file-name buffer)))
    (when (and file (string-prefix-p root file)
               (buffer-local-boundp 'flymake-mode buffer)
               (buffer-local-value 'flymake-mode buffer))
      (with-current-buffer buffer
        (without-restriction
          (mapcar
           (lambda (diagnostic)
             (let ((line (line-number-at-pos
                          (flymake-diagnostic-beg diagnostic)))
                   (rank (gptel-retention-sections--rank
                          (flymake-diagnostic-type diagnostic)))
                   (name (file-relative-name file root)))
               (cons rank
                     (cons (cons name line)
                           (format "%s:%d: %s: %s" name line
                                   (nth rank '("error" "warning" "note"))
                                   (gptel-retention-sections--line
                                    (flymake-diagnostic-text diagnostic)
                                    200))))))
           (flymake-diagnostics)))))))

(defun gptel-retention-sections--rank (type)
  "Return 0, 1 or 2 for a Flymake TYPE that is an error, warning or note."
  (pcase (or (get type 'flymake-category) type)
    ((or 'flymake-error :error) 0)
    ((or 'flymake-warning :warning) 1)
    (_ 2)))

(defun gptel-retention-sections--diagnostic< (a b)
  "Return non-nil if diagnostic A is shown before B."
  (pcase-let ((`(,rank-a (,file-a . ,line-a) . ,_) a)
              (`(,rank-b (,file-b . ,line-b) . ,_) b))
    (cond ((/= rank-a rank-b) (< rank-a rank-b))
          ((not (equal file-a file-b)) (string< file-a file-b))
          (t (< line-a line-b)))))


;;; Resources

(defun gptel-retention-sections-resources ()
  "Return the names of what was added to gptel's context, or nil."
  (when (and (boundp 'gptel-context) gptel-context)
    (string-join
     (delq nil (mapcar #'gptel-retention-sections--resource gptel-context))
     "\n")))

(defun gptel-retention-sections--resource (entry)
  "Return a line that names ENTRY of `gptel-context', or nil if it is gone."
  (let* ((source (if (consp entry) (car entry) entry))
         (spec (and (consp entry) (cdr entry)))
         (part (if (or (plist-get spec :bounds) (plist-get spec :lines)
                       (plist-get spec :overlays))
                   " (parts of it)" "")))
    (cond
     ((stringp source)
      (format "- file %s%s" (expand-file-name source) part))
     ((buffer-live-p source)
      (format "- buffer %s%s%s" (buffer-name source)
              (if-let* ((file (buffer-file-name source)))
                  (format ", visiting %s" file) "")
              part)))))


;;; The reminder of changed files

;; A stamp is (MTIME . SIZE), or nil for a file that does not exist.
(defun gptel-retention-reminders--stamp (file)
  "Return the stamp of FILE, a local file name."
  (let* ((file-name-handler-alist nil)
         (attributes (file-attributes file)))
    (and attributes
         (cons (file-attribute-modification-time attributes)
               (file-attribute-size attributes)))))

(defun gptel-retention-reminders-note-tool (call)
  "Note the files that the tool CALL names, which the model has seen now.
For `gptel-post-tool-call-functions'.  Nothing is noted in a remote
buffer, where looking at files can block."
  (unless (file-remote-p default-directory)
    (let ((files (gptel-retention-sections--state-files
                  (gptel-retention-sections--state))))
      (dolist (name (gptel-retention-reminders--strings
                     (plist-get call :args)))
        (when-let* ((file (gptel-retention-reminders--local-file name)))
          (puthash file (gptel-retention-reminders--stamp file) files)))))
  nil)

(defun gptel-retention-reminders--strings (value)
  "Return the strings anywhere in VALUE, a decoded JSON value."
  (cond ((stringp value) (list value))
        ((and (sequencep value) (listp (cdr-safe value)))
         (seq-mapcat #'gptel-retention-reminders--strings value))))

(defun gptel-retention-reminders--local-file (name)
  "Return NAME as the name of an existing regular file, or nil."
  ;; PATH_MAX is 4,096 on Linux; longer strings are no file names.
  (let ((file-name-handler-alist nil))
    (and (< 0 (length name) 4096)
         (not (string-match-p "[\n\0]" name))
         (let ((file (ignore-errors (expand-file-name name))))
           (and file (file-regular-p file) file)))))

(defun gptel-retention-reminders-file-changed ()
  "Raise an event for each file that changed since the model saw it.
The model saw the files that its tools named and, while
`gptel-use-context' is non-nil, those of `gptel-context'."
  (unless (file-remote-p default-directory)
    (let ((files (gptel-retention-sections--state-files
                  (gptel-retention-sections--state))))
      (gptel-retention-reminders--note-context files)
      (maphash #'gptel-retention-reminders--check-file files))))

(defun gptel-retention-reminders--note-context (files)
  "Note in FILES the files of gptel's context that are new there."
  (when (bound-and-true-p gptel-use-context)
    (dolist (entry (bound-and-true-p gptel-context))
      (when-let* ((name (if (consp entry) (car entry) entry))
                  ((stringp name))
                  (file (gptel-retention-reminders--local-file name)))
        (unless (gethash file files)
          (puthash file (gptel-retention-reminders--stamp file) files))))))

(defun gptel-retention-reminders--check-file (file stamp)
  "Raise an event if FILE no longer has STAMP."
  (let ((now (gptel-retention-reminders--stamp file))
        (key (concat "file-changed:" file)))
    (if (equal now stamp)
        (gptel-retention-cancel-reminder key)
      (gptel-retention-remind
       key
       (if now
           (format "The file %s changed on disk after you last saw it. \
Read it again before you rely on its content." file)
         (format "The file %s, which you saw earlier, no longer exists."
                 file))
       :then (lambda ()
               (puthash file now (gptel-retention-sections--state-files
                                  (gptel-retention-sections--state))))))))


;;; The reminder of a filling context

(defun gptel-retention-reminders--window ()
  "Return the tokens that this buffer's model can hold, or nil."
  (when-let* ((model (bound-and-true-p gptel-model))
              ((symbolp model))
              (thousands (get model :context-window)))
    (and (numberp thousands) (* 1000 thousands))))

(defun gptel-retention-reminders--used ()
  "Return the tokens that this conversation takes up, as far as is known.
Without the provider's count it is a quarter of the bytes last sent,
or of the buffer's."
  (let ((state (gptel-retention-sections--state)))
    (or (gptel-retention-sections--state-tokens state)
        (/ (or (gptel-retention-sections--state-bytes state)
               (bufferpos-to-filepos (point-max) 'approximate))
           4))))

(defun gptel-retention-reminders-context-step ()
  "Return the highest step of context use that is reached, a string, or nil.
The steps are those of `gptel-retention-context-steps'."
  (when-let* ((window (gptel-retention-reminders--window))
              (used (/ (* 100.0 (gptel-retention-reminders--used)) window))
              (step (cl-loop for step in gptel-retention-context-steps
                             when (>= used step) maximize step)))
    (number-to-string step)))

(defun gptel-retention-reminders-context-body ()
  "Return what to say about the context at the present step, or nil."
  (when-let* ((step (gptel-retention-reminders-context-step)))
    (format "About %s %% or more of the context window of %d tokens is in \
use. Ask for short tool results, and tell the user if the task will not fit."
            step (gptel-retention-reminders--window))))


;;; What is built in

(gptel-retention-define-section 'environment
  :title "Environment"
  :body #'gptel-retention-sections-environment
  :doc "Date, operating system, working directory and host.")

(gptel-retention-define-section 'workspace-guidance
  :title "Workspace guidance" :kind 'guidance
  :body #'gptel-retention-sections-guidance
  :doc "AGENTS.md and the like, from the project root down.")

(gptel-retention-define-section 'git-state
  :title "Git state"
  :body #'gptel-retention-sections-git
  :doc "Branch and changed files of the work tree.")

(gptel-retention-define-section 'goal-policy
  :title "Goal" :kind 'guidance
  :body #'gptel-retention-sections-goal-policy
  :doc "The objective of the conversation and how to finish it.")

(gptel-retention-define-section 'goal-facts
  :title "Goal progress"
  :body #'gptel-retention-sections-goal-facts
  :doc "Turns, requests and time since the goal was set.")

(gptel-retention-define-section 'journal-discovery
  :title "Journal"
  :body #'gptel-retention-sections-journal
  :doc "Names of the entries in the journal directory.")

(gptel-retention-define-section 'skills
  :title "Skills"
  :body #'gptel-retention-sections-skills
  :doc "Name and one line for each available skill.")

(gptel-retention-define-section 'memory-index
  :title "Memory index"
  :body #'gptel-retention-sections-memory
  :doc "The first lines of the memory file.")

(gptel-retention-define-section 'diagnostics
  :title "Diagnostics" :live t
  :body #'gptel-retention-sections-diagnostics
  :doc "Flymake's diagnostics in the project's buffers.")

(gptel-retention-define-section 'resources
  :title "Resources"
  :body #'gptel-retention-sections-resources
  :doc "Names of the files and buffers in gptel's context.")

(gptel-retention-define-reminder 'file-changed
  :policy 'on :body #'gptel-retention-reminders-file-changed
  :doc "A file that the conversation read changed on disk.")

(gptel-retention-define-reminder 'context-use
  :policy '(while gptel-retention-reminders-context-step)
  :body #'gptel-retention-reminders-context-body
  :doc "The context window is filling up.")

(provide 'gptel-retention-sections)
;;; gptel-retention-sections.el ends here
