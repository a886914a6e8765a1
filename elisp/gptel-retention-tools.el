;;; gptel-retention-tools.el --- Outputs of tools  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; What a tool returned is handed over to the backend before gptel gets it: if
;; it is large, has a very long line, or is nothing that JSON can carry.  The
;; backend keeps it whole, and gptel goes on with what the backend answers: an
;; excerpt, or the text as it is.  That is decided once, so that the transcript
;; and the payload say the same for ever (rules O1, O2).
;;
;; Nobody waits.  gptel takes a result at any time, as that of an asynchronous
;; tool; it gets one exactly once, also after an error of the backend or when
;; time is up, and none after the request has ended.
;;
;; The model has two tools to get at the whole: they stand at the end of the
;; tools of a conversation from its first request on, or never (rule O7).  For
;; you there is a button at the end of the tool's block.  It is an overlay: the
;; text of the buffer, what is saved of it, and what gptel makes of it are the
;; same with it and without it (rule F9).

;;; Code:

(require 'button)
(require 'cl-lib)
(require 'seq)
(require 'subr-x)
(require 'gptel-retention-rpc)
(require 'gptel-retention-host)
(require 'gptel-retention-turn)
(require 'gptel-retention-inspect)

(declare-function org-at-heading-p "org")
(declare-function org-entry-get "org")
(declare-function org-entry-put "org")
(declare-function org-open-line "org")

(defcustom gptel-retention-keep-outputs t
  "Non-nil means keep large outputs of tools whole and send excerpts.
The backend stores what a tool returned and chooses what the model gets
of it; you and the model can ask for the rest.  With nil outputs are
sent as they are, apart from what JSON cannot carry."
  :type 'boolean
  :group 'gptel-retention)

(defcustom gptel-retention-output-threshold 12000
  "Characters up to which an output of a tool is sent as it is.
Raise it if the model recalls much of what the excerpts left out;
`gptel-retention-outputs' tells."
  :type 'natnum
  :group 'gptel-retention)

(defcustom gptel-retention-output-excerpt-limit 16000
  "Characters of an excerpt at most."
  :type 'natnum
  :group 'gptel-retention)

(defcustom gptel-retention-output-timeout 5
  "Seconds that an output waits for the backend, without blocking Emacs.
After that it is sent as it is."
  :type 'number
  :group 'gptel-retention)

(defcustom gptel-retention-output-tools t
  "Non-nil means give the model tools that read kept outputs.
They are added to the tools of a conversation that has any, from its
first request on, if `gptel-retention-keep-outputs' is set as well.  A
conversation that began without them goes on without them, since another
list of tools is another prompt from its start for the provider's cache."
  :type 'boolean
  :group 'gptel-retention)

(defcustom gptel-retention-answer-limit nil
  "Characters of an answer of the tools that read kept outputs, at most.
What the environment of the backend says comes before it; nil is the
backend's default."
  :type '(choice (const :tag "The backend's default" nil) natnum)
  :group 'gptel-retention)

(defcustom gptel-retention-output-scorer 'local
  "Who says which parts of a large output the task needs.
`local' is the backend itself, at once.  `model' is a model, which is
asked in a request of its own, without secrets that the backend knows to
look like one; if it does not answer in time, or not as it was asked to,
the backend's own choice stands."
  :type '(choice (const :tag "The backend" local)
                 (const :tag "A model" model))
  :group 'gptel-retention)

(defcustom gptel-retention-output-scorer-model nil
  "Model that `gptel-retention-output-scorer' asks, if that is `model'.
nil is the model of the conversation.  Otherwise it is (BACKEND . MODEL),
the name of a gptel backend, a string, and one of its models, a symbol."
  :type '(choice (const :tag "That of the conversation" nil)
                 (cons (string :tag "Backend") (symbol :tag "Model")))
  :group 'gptel-retention)

(defcustom gptel-retention-output-scorer-timeout 5
  "Seconds that a model has for its answer about an output."
  :type 'number
  :group 'gptel-retention)

;;; Which results

(defconst gptel-retention-tools--longest-line 4000
  "Characters of the longest line in a small output that is sent as it is.")

(defconst gptel-retention-tools-category "retention"
  "Category of our own tools, whose results are sent as they are.")

(defun gptel-retention-tools--keep-p (tool text)
  "Return non-nil if TEXT, the result of TOOL, is to be handed over."
  (and gptel-retention-keep-outputs
       (gptel-retention-rpc-capable-p "output/save")
       (not (and tool (equal (gptel-tool-category tool)
                             gptel-retention-tools-category)))
       (or (> (length text) gptel-retention-output-threshold)
           (not (equal text (gptel-retention-rpc-clean-string text)))
           (seq-some (lambda (line)
                       (> (length line) gptel-retention-tools--longest-line))
                     (split-string text "\n")))))

(defun gptel-retention-tools--around-result (process fsm tool call result)
  "Let PROCESS go on with what is to be sent for RESULT.
PROCESS is gptel's function, and FSM, TOOL, CALL and RESULT are its
arguments.  If the backend is asked, it goes on later."
  (let ((buffer (plist-get (gptel-retention-host-info fsm) :buffer)))
    (if (not (and (buffer-live-p buffer)
                  (gptel-retention-turn-enabled-p buffer)))
        (funcall process fsm tool call result)
      (with-current-buffer buffer
        (let ((text (gptel-retention-host-result-text result)))
          (if (gptel-retention-tools--keep-p tool text)
              (gptel-retention-tools--save
               fsm tool call text
               (lambda (text)
                 ;; An aborted request takes no more results.
                 (unless (gptel-retention-host-outcome fsm)
                   (funcall process fsm tool call text))))
            (funcall process fsm tool call
                     (gptel-retention-rpc-clean-string text))))))))

;;; Handing over

(defconst gptel-retention-tools--task-limit 4000
  "Characters, and half the bytes, of a prompt that the backend is told.")

(defconst gptel-retention-tools--call-limit 2000
  "Bytes of a call's arguments that the backend is told.")

(defvar gptel-retention-tools--tasks
  (make-hash-table :test #'eq :weakness 'key)
  "The newest prompts of requests, strings, by state machine.")

(defvar gptel-retention-tools--kept
  (make-hash-table :test #'eq :weakness 'key)
  "What is kept for texts that gptel was given, by text.
The values are plists with the :id of the output and its size in :bytes.")

(defun gptel-retention-tools--save (fsm tool call text go-on)
  "Have TEXT kept, the result of CALL of TOOL, and call GO-ON later.
GO-ON gets what is to be sent for it.  FSM drives the request."
  (gptel-retention-tools-with-id
   (lambda (id)
     (gptel-retention-tools-ask
      "output/save"
      (list :conversation id
            :tool (gptel-retention-rpc-clean-string
                   (if tool (gptel-tool-name tool) ""))
            :call (gptel-retention-tools--arguments call)
            :task (gethash fsm gptel-retention-tools--tasks "")
            :body (gptel-retention-rpc-text text)
            :scorer (symbol-name gptel-retention-output-scorer)
            :limits (gptel-retention-tools--limits))
      (lambda (answer)
        (gptel-retention-tools--have-scored
         id answer
         (lambda (answer)
           (funcall go-on (gptel-retention-tools--take text answer)))))))))

(defun gptel-retention-tools--limits ()
  "Return the limits of an excerpt, in characters."
  (list :tail gptel-retention-output-threshold
        :cap gptel-retention-output-excerpt-limit))

(defun gptel-retention-tools--take (text answer)
  "Return what is to be sent for TEXT, given ANSWER of the backend or nil.
A string of the backend is noted as that of a kept output."
  (let ((shown (gptel-retention-rpc-clean-string
                (or (plist-get answer :text) text))))
    (unless (or (equal shown text)
                (member (plist-get answer :id) '(nil "")))
      (puthash shown (list :id (plist-get answer :id)
                           :bytes (plist-get answer :bytes))
               gptel-retention-tools--kept))
    shown))

(defun gptel-retention-tools--arguments (call)
  "Return the arguments of CALL as JSON text; long strings are cut.
If that is too long still, or no JSON, it is an empty object."
  (let ((encode (lambda (arguments)
                  (let ((json (gptel-retention-host-encode arguments)))
                    (and (<= (length json) gptel-retention-tools--call-limit)
                         (decode-coding-string json 'utf-8-unix t)))))
        (arguments (plist-get call :args)))
    (or (ignore-errors (funcall encode arguments))
        (ignore-errors
          (funcall encode
                   (cl-loop for (key value) on arguments by #'cddr
                            collect key
                            collect (if (stringp value)
                                        (truncate-string-to-width
                                         value 200 nil nil t)
                                      value))))
        "{}")))

(defun gptel-retention-tools--note-task (info fsm)
  "Note the newest prompt of INFO, that of FSM, as what its tools are for.
Of a long one the end is kept: gptel may have put context in front."
  (let* ((last (lambda (limit string)
                 (substring string (- (min limit (length string))))))
         (task (funcall last gptel-retention-tools--task-limit
                        (gptel-retention-rpc-clean-string
                         (gptel-retention-host-prompt-text info)))))
    (puthash fsm
             (if (> (string-bytes task) (* 2 gptel-retention-tools--task-limit))
                 (funcall last (/ gptel-retention-tools--task-limit 2) task)
               task)
             gptel-retention-tools--tasks)))

;;; Asking without waiting

(defun gptel-retention-tools-ask (method params function)
  "Ask the backend METHOD with PARAMS, and call FUNCTION once, later.
It gets the result with its texts read, or nil: after an error, and when
the backend does not answer in `gptel-retention-output-timeout' seconds.
It is called as `gptel-retention-tools--once' says."
  (let ((finish (gptel-retention-tools--once
                 function gptel-retention-output-timeout)))
    (unless (gptel-retention-rpc-demote method
              (gptel-retention-rpc-send
               method params
               (lambda (result problem)
                 (when problem
                   (gptel-retention-rpc-report-error problem method))
                 (funcall finish
                          (gptel-retention-tools--read-texts result)))))
      (funcall finish nil))))

(defun gptel-retention-tools--once (function seconds &optional late)
  "Return a function that has FUNCTION called with its argument, later.
FUNCTION is called once: with the first argument, or, after so many
SECONDS without any, with nil; then LATE is called before, if given.  It
is called in this buffer, not at all if that is killed, and never within
a filter or sentinel: it may wait for a process."
  (let* ((buffer (current-buffer))
         timer
         (finish (lambda (result)
                   (when function
                     (cancel-timer timer)
                     (run-at-time 0 nil #'gptel-retention-tools--call-in
                                  buffer function result)
                     (setq function nil)))))
    (setq timer (run-at-time seconds nil
                             (lambda ()
                               (funcall finish nil)
                               (when late (funcall late)))))
    finish))

(defun gptel-retention-tools--read-texts (answer)
  "Return ANSWER of the backend with what was handed over read."
  (let ((answer (copy-sequence answer)))
    (pcase-dolist (`(,key . ,file) '((:text . :text_file) (:ask . :ask_file)))
      (when-let* ((text (plist-get answer file)))
        (setq answer (plist-put answer key
                                (gptel-retention-rpc-read-text text)))))
    answer))

(defun gptel-retention-tools--call-in (buffer function result)
  "Call FUNCTION with RESULT in BUFFER, unless that is killed."
  (when (buffer-live-p buffer)
    (with-current-buffer buffer
      (funcall function result))))

(defun gptel-retention-tools-with-id (function)
  "Call FUNCTION with the id of this buffer's conversation.
If it has none so far, one is opened; FUNCTION is called later then, and
with the empty string if that failed."
  (let ((base (or (buffer-base-buffer) (current-buffer)))
        (id (gptel-retention-turn-id)))
    (if id
        (funcall function id)
      (with-current-buffer base
        (gptel-retention-tools--decide))
      (gptel-retention-tools-ask
       "conversation/open"
       (list :id ""
             :file (gptel-retention-rpc-clean-string
                    (if-let* ((name (buffer-local-value 'buffer-file-truename
                                                        base)))
                        (expand-file-name name)
                      ""))
             :title (gptel-retention-rpc-clean-string (buffer-name base)))
       (lambda (answer)
         (when-let* ((opened (plist-get answer :id))
                     ((buffer-live-p base)))
           (with-current-buffer base
             (unless gptel-retention-id
               (setq gptel-retention-id opened))))
         (funcall function (or (gptel-retention-turn-id) "")))))))

;;; Scores of a model

(defun gptel-retention-tools--have-scored (id answer function)
  "Call FUNCTION with ANSWER of the backend, or a better one.
If the backend has a question for a model, the better one follows from
its answer, if it gives one.  ID is that of the conversation."
  (if (null (plist-get answer :ask))
      (funcall function answer)
    (gptel-retention-tools--ask-model
     (plist-get answer :ask)
     (lambda (scores)
       (if (null scores)
           (funcall function answer)
         (gptel-retention-tools-ask
          "output/score"
          (list :conversation id
                :id (plist-get answer :id)
                :answer (gptel-retention-rpc-text scores)
                :limits (gptel-retention-tools--limits))
          (lambda (scored)
            (funcall function (or scored answer)))))))))

(defun gptel-retention-tools--ask-model (question function)
  "Ask a model QUESTION and call FUNCTION with its answer, JSON text, or nil.
QUESTION is JSON text with a prompt and the schema of the answer.  The
request is made in a buffer of its own, apart from the conversation."
  (let* ((buffer (generate-new-buffer " *gptel-retention scorer*" t))
         (finish (gptel-retention-tools--once
                  (lambda (answer)
                    (kill-buffer buffer)
                    (funcall function answer))
                  gptel-retention-output-scorer-timeout
                  (lambda () (gptel-retention-host-abort buffer)))))
    (unless (gptel-retention-rpc-demote "No model was asked about an output"
              (let ((question (json-parse-string question :object-type 'plist
                                                 :false-object :json-false))
                    (scorer gptel-retention-output-scorer-model)
                    (chat (cons gptel-backend gptel-model)))
                (with-current-buffer buffer
                  (setq-local
                   gptel-backend (if scorer
                                     (gptel-get-backend (car scorer))
                                   (car chat))
                   gptel-model (cdr (or scorer chat)))
                  (gptel-retention-host-ask
                   (plist-get question :prompt) (plist-get question :schema)
                   (lambda (answer)
                     (funcall finish
                              (gptel-retention-tools--object answer)))))
                t))
      (funcall finish nil))))

(defun gptel-retention-tools--object (answer)
  "Return the JSON object in ANSWER, what a model said, or nil.
Some put it in a block of code."
  (and (stringp answer)
       (string-match "{[^\0]*}" answer)
       (match-string 0 answer)))

;;; The button

(define-button-type 'gptel-retention-tools-output
  'action (lambda (button)
            (gptel-retention-show-output (button-get button 'output)))
  'follow-link t
  'evaporate t
  'help-echo "mouse-2, RET: show the whole output")

(defun gptel-retention-tools--around-show (show results info)
  "Call SHOW, which renders RESULTS of the request of INFO.
Put a button behind each that is not all of its output."
  (if (not (seq-some #'gptel-retention-tools--kept results))
      (funcall show results info)
    (dolist (result results)
      (let ((before (gptel-retention-host-block-end info)))
        (funcall show (list result) info)
        (when-let* ((kept (gptel-retention-tools--kept result)))
          (gptel-retention-rpc-demote "An output has no button"
            (let ((block (gptel-retention-host-block-end info)))
              (unless (equal block before)
                (gptel-retention-tools--put-button kept block)))))))))

(defun gptel-retention-tools--kept (result)
  "Return the kept output of RESULT, (TOOL ARGUMENTS TEXT), or nil."
  (gethash (nth 2 result) gptel-retention-tools--kept))

(defun gptel-retention-tools--put-button (kept block)
  "Put a button to the output KEPT at the end of BLOCK, (BUFFER BEG END)."
  (pcase-let ((`(,buffer ,beg ,end) block))
    (with-current-buffer buffer
      (make-button beg end
                   'type 'gptel-retention-tools-output
                   'output (plist-get kept :id)
                   'display
                   (format "%s [whole output %s, %s]"
                           (buffer-substring-no-properties beg end)
                           (plist-get kept :id)
                           (gptel-retention-inspect-size
                            (plist-get kept :bytes)))))))

;;; Tools for the model

(defvar-local gptel-retention-tools-offered nil
  "Non-nil if this conversation has our tools, from its first request on.
It is saved beside the conversation's id.")
;;;###autoload
(put 'gptel-retention-tools-offered 'safe-local-variable #'booleanp)
(put 'gptel-retention-tools-offered 'permanent-local t)

;; A kind is a row of a table, so that other files add tools of their own.
(defvar gptel-retention-tools-kinds
  '(( gptel-retention-tools-offered "GPTEL_RETENTION_TOOLS"
      gptel-retention-tools--wanted-p gptel-retention-tools--own))
  "Kinds of tools for the model, in the order in which a prompt has them.
Each is (VARIABLE PROPERTY WANTED TOOLS).  Whether a conversation has
them is in the buffer-local VARIABLE, and saved in Org as PROPERTY.  The
function WANTED tells whether one that begins is to have them; TOOLS
returns them, called where the variable `gptel-tools' is the prompt's,
with those tools of ours that stand before them.")

(defun gptel-retention-tools-save ()
  "Write into the buffer which of our tools this conversation has.
For `gptel-save-state-hook', as `gptel-retention-turn-save-id'."
  (gptel-retention-rpc-demote "What tools there are was not saved"
    (when (gptel-retention-turn-id)
      (pcase-dolist (`(,variable ,property . ,_) gptel-retention-tools-kinds)
        (when (symbol-value variable)
          (gptel-retention-tools--save-offered variable property))))))

(defun gptel-retention-tools--save-offered (variable property)
  "Write into the buffer that VARIABLE is t; in Org that is PROPERTY."
  (save-excursion
    (save-restriction
      (widen)
      (cond
       ((not (derived-mode-p 'org-mode))
        (add-file-local-variable variable t))
       ((progn (goto-char (point-min))
               (not (org-entry-get (point) property)))
        (when (org-at-heading-p)
          (org-open-line 1))
        (org-entry-put (point-min) property "t"))))))

(defun gptel-retention-tools-restore ()
  "Read back which of our tools this conversation has."
  (gptel-retention-rpc-demote "What tools there are was not restored"
    (when (derived-mode-p 'org-mode)
      (save-restriction
        (widen)
        (pcase-dolist (`(,variable ,property . ,_)
                       gptel-retention-tools-kinds)
          (when (org-entry-get (point-min) property)
            (set variable t)))))))

(defun gptel-retention-tools--decide ()
  "Decide which of our tools this buffer's conversation has, if it begins.
It does as long as it has no id."
  (unless (gptel-retention-turn-id)
    (pcase-dolist (`(,variable ,_ ,wanted ,_) gptel-retention-tools-kinds)
      (when (funcall wanted)
        (set variable t)))))

(defun gptel-retention-tools--wanted-p ()
  "Return non-nil if a new conversation is to have the tools for outputs."
  (and gptel-retention-keep-outputs gptel-retention-output-tools))

(defun gptel-retention-tools--before-realize (fsm)
  "Add our tools to the prompt of FSM, and note what its tools are for."
  (gptel-retention-rpc-demote "The request goes out without our tools"
    (when-let* ((info (gptel-retention-host-info fsm))
                (prompt (gptel-retention-host-prompt-buffer info))
                (buffer (plist-get info :buffer))
                ((buffer-live-p buffer))
                ((gptel-retention-turn-enabled-p buffer)))
      (gptel-retention-tools--note-task info fsm)
      (gptel-retention-tools--offer
       prompt
       (with-current-buffer (or (buffer-base-buffer buffer) buffer)
         (gptel-retention-tools--decide)
         (seq-filter (lambda (kind) (symbol-value (car kind)))
                     gptel-retention-tools-kinds))))))

(defun gptel-retention-tools--offer (prompt kinds)
  "Put our tools of KINDS behind the other tools of the buffer PROMPT."
  (with-current-buffer prompt
    (let (own)
      (dolist (kind kinds)
        (setq own (append own (funcall (nth 3 kind) own))))
      (when own
        (setq-local gptel-tools
                    (append (seq-difference gptel-tools own #'eq) own))))))

(defconst gptel-retention-tools-toon "\
Structured results are in TOON: `key: value`, two spaces of indentation for each level.
`key[3]: a,b,c` is a list of 3 values.  `key[3]:` starts a list of 3 items, each behind `- `.
`key[3]{a,b}:` starts a table of 3 rows: the columns are a and b, each row is one indented line.
A column `c{x,y}` stands for an object c with the fields x and y, each a column of its own.
`key[3:]{a,b}:` starts a table whose 3 rows each begin with a key of their own and a colon.
`key:` with nothing below it is an empty object, `key: []` an empty list."
  "How a model is told to read TOON (rule T6).
It is the text of the backend's module for that notation.")

(defvar gptel-retention-tools--made nil
  "Our tools for outputs, once they are made.")

(defun gptel-retention-tools--own (_before)
  "Return our tools for outputs, a list, if the prompt has any tools.
The order and every word in them are part of the prompt."
  (and gptel-tools
       (or gptel-retention-tools--made
           (setq gptel-retention-tools--made
                 (gptel-retention-tools--make)))))

(defun gptel-retention-tools--make ()
  "Make our tools for outputs; return them."
  (list
   (gptel-make-tool
    :name "recall_output"
    :category gptel-retention-tools-category
    :description (concat "\
Return a part of a stored tool output, exactly as the tool wrote it.  A long output is shown as
an excerpt that names the id of the output and of the segments left out; the whole is stored.
Ask for one segment, or a range of lines, or the lines that match a pattern; with the id alone
for the text from its start.  An answer that had to be cut says at which offset to go on.\n\n"
                         gptel-retention-tools-toon)
    :args
    '((:name "id" :type string
       :description "Id of the output, as the excerpt names it")
      (:name "segment" :type string :optional t
       :description "Id of a segment, as the excerpt names it")
      (:name "first" :type integer :optional t
       :description "Number of the first line, from 1")
      (:name "last" :type integer :optional t
       :description "Number of the last line")
      (:name "pattern" :type string :optional t
       :description "Regular expression that lines have to match")
      (:name "context" :type integer :optional t
       :description "Lines to show around each match, 2 if absent")
      (:name "offset" :type integer :optional t
       :description "Where to go on, as the last answer says"))
    :function #'gptel-retention-tools--recall
    :async t
    :include t)
   (gptel-make-tool
    :name "search_output"
    :category gptel-retention-tools-category
    :description "\
Search all stored tool outputs of this conversation for words, and return the places with the
ids of their outputs, those of the newest output first."
    :args
    '((:name "query" :type string
       :description "Words to look for")
      (:name "offset" :type integer :optional t
       :description "Where to go on, as the last answer says"))
    :function #'gptel-retention-tools--search
    :async t
    :include t)))

(defun gptel-retention-tools-string (value)
  "Return VALUE, an argument of the model's, as a string."
  (if (stringp value) (gptel-retention-rpc-clean-string value) ""))

(defun gptel-retention-tools-number (value)
  "Return VALUE, an argument of the model's, as an integer from 0 on."
  (if (numberp value) (max 0 (truncate value)) 0))

(defun gptel-retention-tools--recall
    (callback id segment first last pattern context offset)
  "Call CALLBACK with a part of the output ID, for a model.
The part is SEGMENT, or the lines FIRST to LAST, or those that match
PATTERN with CONTEXT lines around, from OFFSET on."
  (let ((id (gptel-retention-tools-string id)))
    (gptel-retention-tools-answer
     callback "recall_output" id "output/recall"
     (list :conversation (or (gptel-retention-turn-id) "")
           :id id
           :segment (gptel-retention-tools-string segment)
           :first (gptel-retention-tools-number first)
           :last (gptel-retention-tools-number last)
           :pattern (gptel-retention-tools-string pattern)
           :context (if (numberp context)
                        (gptel-retention-tools-number context)
                      2)
           :offset (gptel-retention-tools-number offset)
           :cap (or gptel-retention-answer-limit 0)
           :by "model"))))

(defun gptel-retention-tools--search (callback query offset)
  "Call CALLBACK with where outputs match QUERY, from OFFSET on."
  (let ((query (gptel-retention-tools-string query)))
    (gptel-retention-tools-answer
     callback "search_output" query "output/search"
     (list :conversation (or (gptel-retention-turn-id) "")
           :query query
           :cap (or gptel-retention-answer-limit 0)
           :offset (gptel-retention-tools-number offset)))))

(defun gptel-retention-tools-answer (callback name id method params)
  "Call CALLBACK with the text that the backend answers to METHOD.
PARAMS are the parameters.  If there is none, CALLBACK gets one line
that says so of the tool NAME and of ID (rule K3)."
  (gptel-retention-tools-ask
   method params
   (lambda (answer)
     (funcall callback
              (or (plist-get answer :text)
                  (format "Error: %s failed and has no result (%s)." name
                          (truncate-string-to-width
                           (string-replace "\n" " " id) 100)))))))

;;; Turning it on and off

(defconst gptel-retention-tools--advice
  '((result :around gptel-retention-tools--around-result)
    ;; Innermost, to be called for each result that is shown by itself.
    (show-results :around gptel-retention-tools--around-show (depth . 100))
    (realize :before gptel-retention-tools--before-realize))
  "What runs when gptel does something while conversations are kept.
The elements are as in `gptel-retention-host-advise'.")

(defconst gptel-retention-tools--hooks
  '((gptel-save-state-hook . gptel-retention-tools-save)
    (gptel-mode-hook . gptel-retention-tools-restore))
  "What runs in a buffer whose conversation is kept.")

(defun gptel-retention-tools-enable ()
  "Keep outputs of tools in this buffer."
  (gptel-retention-host-advise gptel-retention-tools--advice)
  (pcase-dolist (`(,hook . ,function) gptel-retention-tools--hooks)
    (add-hook hook function nil t))
  (gptel-retention-tools-restore))

(defun gptel-retention-tools-disable ()
  "No longer keep outputs of tools in this buffer."
  (pcase-dolist (`(,hook . ,function) gptel-retention-tools--hooks)
    (remove-hook hook function t)))

(defun gptel-retention-tools-leave ()
  "Leave gptel alone: no buffer's outputs are kept any more."
  (gptel-retention-host-unadvise gptel-retention-tools--advice))

(provide 'gptel-retention-tools)
;;; gptel-retention-tools.el ends here
