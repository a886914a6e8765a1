;;; gptel-retention-host.el --- Knowledge of gptel  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Everything that depends on how gptel works inside.  This is the only file
;; that names its private functions and variables, each guarded where gptel
;; may lack it; a new gptel release should need edits here alone.
;;
;; INFO is the plist of a gptel request (`gptel-fsm-info').  Its :data is the
;; payload: the plist that gptel is about to send as JSON.  The conversation
;; is one array in it, whose key depends on the API.  JSON is written and read
;; by gptel's own rules, so that {}, null, false and [] survive both ways.

;;; Code:

(require 'cl-lib)
(require 'seq)
(require 'subr-x)
(require 'gptel)
(require 'gptel-retention-rpc)

(declare-function gptel-org--unescape-tool-results "ext:gptel-org")
(declare-function gptel-org--strip-block-headers "ext:gptel-org")
(declare-function gptel-org--strip-elements "ext:gptel-org")
(declare-function gptel-org--get-topic-start "ext:gptel-org")
(declare-function gptel--convert-markdown->org "ext:gptel-org")
(declare-function gptel--parse-buffer "ext:gptel-request")
(declare-function gptel--parse-schema "ext:gptel-request")
(declare-function gptel--request-data "ext:gptel-request")
(declare-function gptel--trim-prefixes "ext:gptel-request" t t)
(declare-function gptel-org--send-with-props "ext:gptel-org")
(declare-function gptel--with-buffer-copy-internal "ext:gptel-request")

(defvar gptel--fsm-last)
(defvar gptel--known-backends)
(defvar gptel--request-alist)
(defvar gptel-org-branching-context)
(defvar gptel-org-ignore-elements)
(defvar gptel-track-response)
(defvar org-complex-heading-regexp)
(defvar org-property-drawer-re)
(defvar url-http-end-of-headers)
(defvar url-http-response-status)

(defcustom gptel-retention-api-alist
  '(("\\`api\\.deepseek\\.com\\'" . "deepseek")
    ("\\`api\\.mistral\\.ai\\'" . "mistral")
    ("\\`api\\.x\\.ai\\'" . "openai"))
  "Which API a host speaks that gptel's backend is not specific about.
Each element is (REGEXP . API); REGEXP is matched with the host of a
backend that speaks a dialect of the OpenAI chat API, and the first
match counts.  Add your host if it is a proxy for one of these APIs."
  :type '(alist :key-type regexp
                :value-type (choice (const "openai") (const "deepseek")
                                    (const "mistral") string))
  :group 'gptel-retention)

;;; The payload

(defconst gptel-retention-host--arrays '(:messages :input :contents)
  "Keys under which a payload may keep the conversation.")

(defun gptel-retention-host-array-key (info)
  "Return the key of the conversation in the payload of INFO, or nil."
  (let ((data (plist-get info :data)))
    (and (consp data)
         (cl-find-if (lambda (key) (vectorp (plist-get data key)))
                     gptel-retention-host--arrays))))

(defun gptel-retention-host-array-name (info)
  "Return the name of the conversation's key in INFO, a string or nil."
  (when-let* ((key (gptel-retention-host-array-key info)))
    (substring (symbol-name key) 1)))

(defun gptel-retention-host-array (info)
  "Return the conversation in the payload of INFO, a vector or nil."
  (when-let* ((key (gptel-retention-host-array-key info)))
    (plist-get (plist-get info :data) key)))

(defun gptel-retention-host-set-array (info array)
  "Make ARRAY, a vector, the conversation in the payload of INFO."
  (plist-put (plist-get info :data)
             (gptel-retention-host-array-key info)
             array))

(defun gptel-retention-host-head (info)
  "Return the payload of INFO without the conversation, as JSON bytes."
  (let ((array (gptel-retention-host-array-key info)))
    (gptel-retention-host-encode
     (cl-loop for (key value) on (plist-get info :data) by #'cddr
              unless (eq key array) collect key and collect value))))

(defun gptel-retention-host-include (info names)
  "Have the payload of INFO ask the provider to include NAMES, too.
Return a function that takes this back, or nil if nothing was to add."
  (let* ((data (plist-get info :data))
         (before (plist-member data :include))
         (asked (and (vectorp (cadr before)) (cadr before)))
         (missing (seq-difference names asked)))
    (when missing
      (plist-put data :include (vconcat asked missing))
      (lambda ()
        (if before
            (plist-put data :include asked)
          ;; It is not the first key, so the list stays the same object.
          (cl-remf data :include))))))

(defun gptel-retention-host-encode (value)
  "Return VALUE as JSON the way gptel writes it, a unibyte UTF-8 string.
VALUE is a plist or a vector.  Signal an error for what JSON cannot
carry, such as raw bytes."
  (let ((json (gptel--json-encode value)))
    (if (multibyte-string-p json)
        (encode-coding-string json 'utf-8-unix t)
      json)))

(defun gptel-retention-host-decode (text)
  "Return the value of TEXT, a JSON array, as gptel would read it.
The value is a vector that `gptel-retention-host-encode' turns into an
equal JSON text.  Signal `gptel-retention-protocol-error' if TEXT is
something else."
  (let ((value (with-temp-buffer
                 (insert text)
                 (goto-char (point-min))
                 (condition-case err
                     (gptel--json-read)
                   (error (signal 'gptel-retention-protocol-error
                                  (list (error-message-string err))))))))
    (unless (vectorp value)
      (signal 'gptel-retention-protocol-error '("not a JSON array")))
    value))

;;; Requests

(defconst gptel-retention-host-functions
  '((request gptel-request)
    (dispatch gptel-curl-get-response gptel--url-get-response)
    (curl-end gptel-curl--stream-cleanup gptel-curl--sentinel)
    (url-end gptel--url-parse-response)
    (edit-call gptel--inject-tool-call)
    (show-results gptel--display-tool-results)
    (realize gptel--realize-query)
    (result gptel--process-tool-call))
  "What gptel does that concerns us, and its functions that do it.
The arguments are: `request', those of `gptel-request'; `dispatch' and
`realize', the state machine; `curl-end', curl's process and its status;
`url-end', the backend and INFO, in the buffer of the response;
`edit-call', the backend, the payload and two calls, the old and the
new; `show-results', a list of (TOOL ARGUMENTS RESULT), and INFO;
`result', the state machine, a tool or nil, a call and its result.")

(defun gptel-retention-host-advise (advice)
  "Add ADVICE to functions of gptel, those of them that there are.
Its elements are (WHAT HOW FUNCTION . PROPERTIES), WHAT being one of
`gptel-retention-host-functions' and the rest as for `advice-add'."
  (pcase-dolist (`(,what ,how ,function . ,properties) advice)
    (dolist (place (alist-get what gptel-retention-host-functions))
      (when (fboundp place)
        (advice-add place how function properties)))))

(defun gptel-retention-host-unadvise (advice)
  "Remove ADVICE, as in `gptel-retention-host-advise', from gptel."
  (pcase-dolist (`(,what ,_how ,function . ,_properties) advice)
    (dolist (place (alist-get what gptel-retention-host-functions))
      (advice-remove place function))))

(defun gptel-retention-host-info (fsm)
  "Return the plist of the request that FSM drives.
Ask again after a dispatch: gptel replaces the head of the list."
  (gptel-fsm-info fsm))

(defun gptel-retention-host-outcome (fsm)
  "Return how the request of FSM ended, or nil while it is going on.
The value is `done', `error' or `abort'."
  (pcase (gptel-fsm-state fsm)
    ('DONE 'done)
    ('ERRS 'error)
    ('ABRT 'abort)))

(defun gptel-retention-host-make-fsm ()
  "Return a new state machine with the default states of gptel."
  (gptel-make-fsm))

(defun gptel-retention-host-prompt-buffer (info)
  "Return the buffer with the prompt of INFO that is not realized yet."
  (let ((data (plist-get info :data)))
    (and (bufferp data) (buffer-live-p data) data)))

(defun gptel-retention-host-prompt-text (info)
  "Return the newest prompt in the prompt buffer of INFO, a string."
  (with-current-buffer (gptel-retention-host-prompt-buffer info)
    (string-trim
     (buffer-substring-no-properties
      (gptel-retention-host--user-start (point-min) (point-max))
      (point-max)))))

(defun gptel-retention-host-loop-p (info)
  "Return non-nil if the request of INFO has been through a tool call.
Its payload then holds what the tool loop added to it."
  (let ((history (plist-get info :history)))
    (or (memq 'TOOL history) (memq 'TRET history))))

(defun gptel-retention-host-status (info)
  "Return the HTTP status in INFO, an integer, or nil."
  (let ((status (plist-get info :http-status)))
    (cond ((integerp status) status)
          ((and (stringp status) (string-match-p "\\`[0-9]+\\'" status))
           (string-to-number status)))))

(defun gptel-retention-host-tokens (info)
  "Return the tokens that the last response of INFO reports, or nil.
That is all input, cached or not, and the output.  What the provider
put into its cache is in the input already."
  (when-let* ((tokens (plist-get info :tokens))
              (counts (cl-loop for key in '(:input :cached :output)
                               for count = (plist-get tokens key)
                               when (numberp count) collect count)))
    (apply #'+ counts)))

(defun gptel-retention-host-error (info)
  "Return what the provider said was wrong in INFO, a string."
  (let ((problem (plist-get info :error)))
    (cond ((null problem) "")
          ((stringp problem) problem)
          (t (condition-case nil
                 (decode-coding-string (gptel-retention-host-encode problem)
                                       'utf-8-unix)
               (error (format "%S" problem)))))))

(defun gptel-retention-host-add-post (fsm function)
  "Have FUNCTION called with the request's plist when FSM ends."
  (let ((info (gptel-fsm-info fsm)))
    (setf (gptel-fsm-info fsm)
          (plist-put info :post (cons function (plist-get info :post))))))

;;; Requests of our own

(defun gptel-retention-host-ask (prompt schema function)
  "Ask this buffer's model PROMPT and call FUNCTION with the answer.
SCHEMA, a plist, is that of the JSON object that it is to answer with,
and is also given to APIs that take one.  FUNCTION gets a string or nil,
perhaps more than once."
  (gptel-retention-host--ask
   prompt
   (concat "Answer with one JSON object of this schema, and nothing \
else:\n" (decode-coding-string (gptel-retention-host-encode schema) 'utf-8))
   (and (gptel-retention-host--schema-p) schema)
   (lambda (response _info)
     (when (or (null response) (stringp response))
       (funcall function response)))))

(defun gptel-retention-host-ask-text (prompt system function)
  "Ask this buffer's model PROMPT and call FUNCTION with its answer.
SYSTEM is the system prompt.  FUNCTION gets a string and nil, or nil and
what went wrong, a string.  It may be called again: the first call tells."
  (gptel-retention-host-add-post
   (gptel-retention-host--ask
    prompt system nil
    (lambda (response info)
      (cond ((stringp response) (funcall function response nil))
            ((null response)
             (funcall function nil
                      (string-join
                       (delete "" (list (or (plist-get info :status) "")
                                        (gptel-retention-host-error info)))
                       ": "))))))
   ;; gptel does not tell of an empty answer.
   (lambda (&rest _)
     (funcall function nil "the answer is empty"))))

(defun gptel-retention-host--ask (prompt system schema callback)
  "Ask this buffer's model PROMPT, with SYSTEM and SCHEMA, apart from all else.
CALLBACK is one of `gptel-request'.  Return the state machine."
  (setq-local gptel-use-tools nil
              gptel-use-context nil
              gptel-cache nil
              gptel-include-reasoning nil)
  (gptel-request prompt :system system :schema schema :callback callback))

(defun gptel-retention-host--schema-p ()
  "Return non-nil if gptel can give a schema to this buffer's backend."
  (and (fboundp 'gptel--parse-schema)
       (condition-case nil
           (gptel--parse-schema gptel-backend (list :type "object"))
         (cl-no-applicable-method nil))))

(defun gptel-retention-host-abort (buffer)
  "Stop the requests of BUFFER, quietly."
  (let ((inhibit-message t)
        (message-log-max nil))
    (gptel-abort buffer)))

(defun gptel-retention-host-read-model ()
  "Let the user choose a model; return (BACKEND . MODEL)."
  (let* ((models (cl-loop for (name . backend) in gptel--known-backends
                          nconc (mapcar
                                 (lambda (model)
                                   (cons (format "%s:%s" name model)
                                         (cons backend model)))
                                 (gptel-backend-models backend))))
         (default (format "%s:%s" (gptel-backend-name gptel-backend)
                          gptel-model)))
    (cdr (assoc (completing-read (format-prompt "Model" default)
                                 models nil t nil nil default)
                models))))

(defun gptel-retention-host-outline ()
  "Return what a request from this buffer would be like, a plist as INFO.
Its payload has no conversation in it."
  (funcall
   (if (and (derived-mode-p 'org-mode)
            (fboundp 'gptel-org--send-with-props))
       #'gptel-org--send-with-props     ; what properties of a heading say
     #'funcall)
   (lambda ()
     (let ((gptel-use-tools nil)
           (gptel-system-prompt nil))
       (list :buffer (current-buffer)
             :backend gptel-backend
             :model gptel-model
             :data (gptel--request-data gptel-backend nil))))))

(defun gptel-retention-host-busy-p ()
  "Return non-nil if a request of this buffer is under way.
A buffer that shares its text counts as well."
  (let* ((base (lambda (buffer) (or (buffer-base-buffer buffer) buffer)))
         (own (funcall base (current-buffer)))
         (here-p (lambda (buffer)
                   (and (buffer-live-p buffer)
                        (eq own (funcall base buffer))))))
    (or (and (boundp 'gptel--fsm-last)
             (cl-some (lambda (buffer)
                        (let ((fsm (buffer-local-value 'gptel--fsm-last
                                                       buffer)))
                          (and fsm (funcall here-p buffer)
                               (not (gptel-retention-host-outcome fsm)))))
                      (buffer-list)))
        (and (boundp 'gptel--request-alist)
             (cl-some (lambda (entry)
                        (funcall here-p
                                 (plist-get (gptel-fsm-info (cadr entry))
                                            :buffer)))
                      gptel--request-alist)))))

;;; Responses

(defun gptel-retention-host-curl-info (process)
  "Return the plist of the request that curl's PROCESS answers, or nil."
  (when-let* ((fsm (and (boundp 'gptel--request-alist)
                        (car (alist-get process gptel--request-alist)))))
    (gptel-fsm-info fsm)))

(defun gptel-retention-host-curl-response (process)
  "Return what curl's PROCESS received, or nil if the transfer failed.
The value is (TEXT . SIZE): a copy of the text that gptel is about to
parse, and the bytes at its start that are headers, of all answers on
the way.  `gptel-retention-host-body' makes a body of it, later."
  (when-let* (((eq (process-status process) 'exit))
              ((eql (process-exit-status process) 0))
              (uuid (plist-get (gptel-retention-host-curl-info process)
                               :uuid)))
    (with-current-buffer (process-buffer process)
      (save-excursion
        (save-match-data
          (goto-char (point-max))
          ;; gptel has curl write this behind the body.
          (when (and (search-backward (format "(%s . " uuid) nil t)
                     (looking-at ".* \\([0-9]+\\))"))
            (cons (buffer-substring-no-properties (point-min) (point))
                  (string-to-number (match-string 1)))))))))

(defun gptel-retention-host-url-response ()
  "Return what url.el received in this buffer, or nil if it was refused.
The value is as in `gptel-retention-host-curl-response'."
  (when (and (eql url-http-response-status 200)
             (markerp url-http-end-of-headers))
    ;; The marker stands at the end of the empty line.
    (cons (buffer-substring-no-properties
           (min (1+ url-http-end-of-headers) (point-max)) (point-max))
          nil)))

(defun gptel-retention-host-body (response)
  "Return the body of RESPONSE, the provider's own bytes, or nil.
RESPONSE is a value of `gptel-retention-host-curl-response'.  The value
is nil unless the last answer in it is that of an accepted request."
  (pcase-let* ((`(,text . ,size) response)
               ;; gptel decodes without changing line ends; bytes that are
               ;; no UTF-8 have become raw bytes, and become themselves again.
               (bytes (if (multibyte-string-p text)
                          (encode-coding-string text 'utf-8-unix)
                        text)))
    (cond ((null size) bytes)
          ((gptel-retention-host--accepted-p (substring bytes 0 size))
           (substring bytes size)))))

(defun gptel-retention-host--accepted-p (headers)
  "Return non-nil if the last status line in HEADERS has the status 200."
  (let ((start 0) status)
    (while (string-match "^HTTP/[.0-9]+ +\\([0-9]+\\)" headers start)
      (setq status (match-string 1 headers)
            start (match-end 0)))
    (equal status "200")))

;;; Results of calls

(defun gptel-retention-host-result-text (result)
  "Return RESULT, what a tool returned, as the string that gptel sends."
  (gptel--to-string result))

(defun gptel-retention-host-block-end (info)
  "Return where the last line of the block that INFO last inserted stands.
The value is (BUFFER BEG END), or nil if that is no block of a tool."
  (when-let* ((marker (plist-get info :tracking-marker))
              (buffer (and (markerp marker) (marker-buffer marker))))
    (with-current-buffer buffer
      (save-excursion
        (save-restriction
          (widen)
          (goto-char marker)
          (skip-chars-backward "\n")
          (let ((end (point)))
            (forward-line 0)
            (when (looking-at-p "```\\|#\\+end_tool")
              (list buffer (point) end))))))))

(defun gptel-retention-host-order-results (results info response)
  "Return RESULTS in the provider's order, each with its call.
RESULTS are as gptel shows them, see `gptel-retention-host-functions';
INFO holds the calls.  RESPONSE is what the provider sent, as in
`gptel-retention-host-body', or nil.  The value is a list of (RESULT .
CALL), CALL being nil if none fits."
  (let* ((calls (plist-get info :tool-use))
         (pairs (gptel-retention-host--pair-results results calls))
         (places (mapcar (lambda (pair)
                           (gptel-retention-host--call-place
                            (cdr pair) (car response)))
                         pairs)))
    (when (memq nil places)             ; then gptel's own order of the calls
      (setq places (mapcar (lambda (pair)
                             (or (cl-position (cdr pair) calls :test #'eq)
                                 (length calls)))
                           pairs)))
    (mapcar #'cdr
            (sort (cl-mapcar #'cons places pairs)
                  (lambda (a b) (< (car a) (car b)))))))

(defun gptel-retention-host--call-place (call text)
  "Return where TEXT, a response or nil, first names the id of CALL, or nil."
  (when-let* ((id (plist-get call :id))
              ((stringp text)))
    (string-search (format "\"%s\"" id) text)))

(defun gptel-retention-host--pair-results (results calls)
  "Return a list of (RESULT . CALL), one for each of RESULTS.
Each of CALLS is used once, and those first that equal a result in all:
a hook may have changed what only one of the two shows."
  (let ((pairs (mapcar #'list results))
        (free (copy-sequence calls)))
    (dolist (keys '((:name :args :result) (:name :args) (:name)))
      (dolist (pair pairs)
        (unless (cdr pair)
          (pcase-let* ((`(,tool ,args ,result) (car pair))
                       (shown (list :name (and tool (gptel-tool-name tool))
                                    :args args :result result)))
            (setcdr pair (cl-find-if
                          (lambda (call)
                            (cl-every (lambda (key)
                                        (equal (plist-get call key)
                                               (plist-get shown key)))
                                      keys))
                          free))
            (setq free (delq (cdr pair) free))))))
    pairs))

(defun gptel-retention-host-with-call (info call function)
  "Call FUNCTION while INFO has CALL alone, or all it has if that is nil."
  (let ((calls (plist-get info :tool-use)))
    (unwind-protect
        (progn (when call
                 (plist-put info :tool-use (list call)))
               (funcall function))
      (plist-put info :tool-use calls))))

;;; Who answers

(defconst gptel-retention-host--apis
  '((gptel-kagi-p . "kagi")
    (gptel--gh-p . "copilot")
    (gptel-deepseek-p . "deepseek")
    (gptel-perplexity-p . "perplexity")
    (gptel-privategpt-p . "privategpt")
    (gptel-anthropic-p . "anthropic")
    (gptel-bedrock-p . "bedrock")
    (gptel-gemini-p . "gemini")
    (gptel-ollama-p . "ollama")
    (gptel-openai-responses-p . "responses")
    (gptel-openai-p . "openai"))
  "Alist of predicates and API names; the more special ones first.")

(defun gptel-retention-host--api (backend)
  "Return the name of the API of BACKEND, a string."
  (let ((api (or (cdr (cl-find-if (lambda (pair)
                                    (and (fboundp (car pair))
                                         (funcall (car pair) backend)))
                                  gptel-retention-host--apis))
                 (symbol-name (type-of backend))))
        (host (gptel-backend-host backend)))
    (or (and (member api '("openai" "deepseek"))
             (stringp host)
             (cdr (cl-assoc host gptel-retention-api-alist
                            :test (lambda (host regexp)
                                    (string-match-p regexp host)))))
        api)))

(defun gptel-retention-host-identity (info)
  "Return who answers the request of INFO, a plist of strings.
The keys are :api, :backend, :protocol, :host, :endpoint, :model and
:cache.  No key, token or header is looked at, and what a host or an
endpoint may carry of one is cut off (rule I5)."
  (let ((backend (plist-get info :backend))
        (text (lambda (value) (if (stringp value) value ""))))
    (list :api (gptel-retention-host--api backend)
          :backend (funcall text (gptel-backend-name backend))
          :protocol (funcall text (gptel-backend-protocol backend))
          :host (replace-regexp-in-string
                 "\\`.*@" "" (funcall text (gptel-backend-host backend)))
          :endpoint (replace-regexp-in-string
                     "[?#].*\\'" ""
                     (funcall text (gptel-backend-endpoint backend)))
          :model (format "%s" (or (plist-get info :model) ""))
          :cache (gptel-retention-host--cache (plist-get info :buffer)))))

(defun gptel-retention-host--cache (buffer)
  "Return the cache policy in BUFFER as a string, \"\" for none."
  (let ((cache (and (buffer-live-p buffer)
                    (buffer-local-value 'gptel-cache buffer))))
    (cond ((null cache) "")
          ((listp cache)
           (mapconcat #'symbol-name
                      (sort (copy-sequence cache) #'string<) ","))
          (t (format "%s" cache)))))

(defun gptel-retention-host-caches-p (info)
  "Return non-nil if gptel would mark messages of INFO for the cache.
It does for models that it knows to have one."
  (and (fboundp 'gptel--model-capable-p)
       (gptel--model-capable-p 'cache (plist-get info :model))))

;;; The transcript

(defun gptel-retention-host-span (info)
  "Return where the response of INFO stands, (BUFFER BEG END), or nil.
It is nil unless gptel itself inserts the response, whole, into the
buffer that the request came from, where roles are tracked (rule H3).
END is nil as long as nothing is inserted."
  (let ((position (plist-get info :position))
        (end (plist-get info :tracking-marker))
        (buffer (plist-get info :buffer)))
    (when (and (memq (plist-get info :callback)
                     '(gptel--insert-response
                       gptel-curl--stream-insert-response))
               (null (plist-get info :in-place))
               (markerp position)
               (buffer-live-p buffer)
               (eq (marker-buffer position) buffer)
               (or (buffer-local-value 'gptel-mode buffer)
                   (buffer-local-value 'gptel-track-response buffer)))
      (list buffer (marker-position position)
            (and (markerp end)
                 (eq (marker-buffer end) buffer)
                 (marker-position end))))))

(defun gptel-retention-host-prompt-bounds (buffer)
  "Return the bounds of what gptel would send of BUFFER now, (BEG . END)."
  (with-current-buffer buffer
    (if (use-region-p)
        (cons (region-beginning) (region-end))
      (cons (point-min)
            (save-excursion (skip-syntax-forward "w.") (point))))))

(defun gptel-retention-host-parse (info beg end &optional lasting)
  "Return the messages that BEG to END of the transcript will stand for.
They are a list, parsed by gptel's own functions from a copy, the way
the next request will parse the buffer of INFO.  A user's text at the
end is left out, since it will merge with the prompt that follows it
\(rule Q4), unless LASTING is non-nil, which says that a response
follows."
  (let ((buffer (plist-get info :buffer)))
    (with-current-buffer buffer
      (save-restriction
        (widen)
        (gptel--with-buffer-copy-internal
         buffer nil nil
         (lambda ()
           (unwind-protect
               (progn
                 (insert-buffer-substring buffer beg end)
                 (gptel-retention-host--parse-copy info buffer lasting))
             (kill-buffer (current-buffer)))))))))

(defun gptel-retention-host--parse-copy (info buffer lasting)
  "Return the messages in the current buffer, a copy of a part of BUFFER.
INFO and LASTING are as in `gptel-retention-host-parse'."
  (setq-local gptel-cache nil           ; else the last message gets a mark
              gptel-backend (plist-get info :backend)
              gptel-model (plist-get info :model))
  (when (with-current-buffer buffer (derived-mode-p 'org-mode))
    (gptel-retention-host--strip-org buffer))
  (gptel-retention-host-join-results buffer)
  (unless lasting
    (delete-region (gptel-retention-host--user-start (point-min) (point-max))
                   (point-max)))
  (goto-char (point-max))
  ;; Some parsers signal on an empty region.
  (unless (string-blank-p (buffer-substring-no-properties
                           (point-min) (point-max)))
    (gptel--parse-buffer gptel-backend nil)))

(defun gptel-retention-host--strip-org (buffer)
  "Take out of the current copy of a part of BUFFER what gptel takes out.
This is what `gptel-org--create-prompt-buffer' does to the text."
  (when (fboundp 'gptel-org--unescape-tool-results)
    (gptel-org--unescape-tool-results))
  (when (fboundp 'gptel-org--strip-block-headers)
    (gptel-org--strip-block-headers))
  (when (and (fboundp 'gptel-org--strip-elements)
             (boundp 'gptel-org-ignore-elements))
    (when-let* ((gptel-org-ignore-elements
                 (buffer-local-value 'gptel-org-ignore-elements buffer)))
      (gptel-org--strip-elements)))
  (setq org-complex-heading-regexp
        (buffer-local-value 'org-complex-heading-regexp buffer)
        tab-width (buffer-local-value 'tab-width buffer)))

(defun gptel-retention-host-join-results (buffer)
  "Make each tool result one in the current copy of a part of BUFFER.
What is hidden or ignored between two runs of the same id is removed,
unless a new call begins with the second run: calls may share an id
\(rule F9)."
  (let ((buffer-invisibility-spec
         (buffer-local-value 'buffer-invisibility-spec buffer))
        (start (point-min))
        end                           ; of the last run, if nothing follows it
        run)                          ; but what is hidden; RUN is its property
    (save-excursion
      (while (< start (point-max))
        (let ((next (next-single-property-change start 'gptel nil (point-max)))
              (value (get-text-property start 'gptel)))
          (cond
           ((eq (car-safe value) 'tool)
            (when (and end (equal value run)
                       (not (gptel-retention-host--call-p start)))
              (put-text-property start next 'gptel run)
              (delete-region end start)
              (setq next (- next (- start end))))
            (setq end next
                  run (get-text-property (1- next) 'gptel)))
           ((not (gptel-retention-host--hidden-p start next))
            (setq end nil)))
          (setq start next))))))

(defun gptel-retention-host--call-p (pos)
  "Return non-nil if what stands at POS begins a tool call."
  (goto-char pos)
  (looking-at-p "[[:space:]\n]*(:name\\_>"))

(defun gptel-retention-host--hidden-p (beg end)
  "Return non-nil if the text from BEG to END is ignored or not visible.
All of it has the same property `gptel'."
  (pcase (get-text-property beg 'gptel)
    ('ignore t)
    ('nil (cl-loop for pos = beg
                   then (next-single-property-change pos 'invisible nil end)
                   while (< pos end)
                   always (invisible-p (get-text-property pos 'invisible))))))

(defun gptel-retention-host--user-start (beg end)
  "Return where the user's text that ends at END begins, at least BEG.
Text that gptel ignores counts as part of it."
  (let ((start end))
    (while (and (> start beg)
                (memq (get-char-property (1- start) 'gptel) '(nil ignore)))
      (setq start (previous-single-property-change start 'gptel nil beg)))
    start))

(defun gptel-retention-host-parse-prompt (info beg end)
  "Return the newest prompt between BEG and END as a list of messages.
That is the text after the last response in the buffer of INFO, without
the changes that gptel's prompt transforms make (rule Q6)."
  (gptel-retention-host-parse
   info
   (with-current-buffer (plist-get info :buffer)
     (save-restriction
       (widen)
       (gptel-retention-host--user-start beg end)))
   end
   t))

;;; Turns in the transcript

(defun gptel-retention-host-turn-ends ()
  "Return the positions in this buffer at which a turn ends, a list.
A turn ends behind a response that is followed by a prompt, or by
nothing.  Calls and their results are thus within a turn.  What is
ignored and follows the response at once belongs to it."
  (let ((start (point-min)) end ends)
    (while (< start (point-max))
      (let ((next (next-single-property-change start 'gptel nil (point-max))))
        (pcase (get-text-property start 'gptel)
          ('response (setq end next))
          ('ignore (when (eql end start)
                     (setq end next)))
          ('nil (when (and end (gptel-retention-host-prompt-p start next))
                  (push end ends)
                  (setq end nil)))
          (_ (setq end nil)))           ; results of a tool
        (setq start next)))
    (when end
      (push end ends))
    (nreverse ends)))

(defun gptel-retention-host-prompt-p (beg end)
  "Return non-nil if gptel would send what the user wrote from BEG to END."
  (let ((text (buffer-substring-no-properties beg end)))
    (when (and (derived-mode-p 'org-mode)
               (fboundp 'gptel-org--strip-block-headers))
      (setq text (with-temp-buffer
                   (insert text)
                   (gptel-org--strip-block-headers)
                   (buffer-string))))
    (gptel--trim-prefixes text)))

(defun gptel-retention-host-transcript-start ()
  "Return where gptel begins to read at point, and where text begins.
The value is (START . TEXT).  Between the two are the heading of an Org
topic, what Org keeps behind it or at the top, or the line with
file-local variables."
  (save-excursion
    (let ((topic (and (derived-mode-p 'org-mode)
                      (fboundp 'gptel-org--get-topic-start)
                      (gptel-org--get-topic-start))))
      (goto-char (or topic (point-min)))
      (cons (point)
            (progn
              (when (or topic (search-forward "-*-" (pos-eol) t 2))
                (forward-line 1))
              (when (derived-mode-p 'org-mode)
                (gptel-retention-host--skip-org-lines))
              (point))))))

(defun gptel-retention-host--skip-org-lines ()
  "Go behind property drawers, keywords, comments and empty lines."
  (while (and (not (eobp))
              (or (and (looking-at org-property-drawer-re)
                       (goto-char (match-end 0)))
                  (looking-at-p
                   "[ \t]*\\(?:$\\|#\\(?: \\|\\+[^ \t\n:]+:\\)\\)")))
    (forward-line 1)))

(defun gptel-retention-host-branching-p ()
  "Return non-nil if not all text before point is sent with a prompt here."
  (and (derived-mode-p 'org-mode)
       (bound-and-true-p gptel-org-branching-context)))

(defun gptel-retention-host-response-text (text)
  "Return TEXT, a model's answer, as gptel would show it in this buffer."
  (if (and (derived-mode-p 'org-mode)
           gptel-org-convert-response
           (fboundp 'gptel--convert-markdown->org))
      (gptel--convert-markdown->org text)
    text))

(defun gptel-retention-host-insert-turn (prompt response)
  "Insert PROMPT and RESPONSE to it at point, as gptel would show them."
  (unless (bolp)
    (insert gptel-response-separator))
  (let ((beg (point)) middle)
    (insert (gptel-prompt-prefix-string) prompt
            gptel-response-separator (gptel-response-prefix-string))
    (setq middle (point))
    (insert response)
    ;; gptel has text take over the role of what follows it.
    (remove-list-of-text-properties beg (point) '(gptel front-sticky))
    (add-text-properties middle (point)
                         '(gptel response front-sticky (gptel)))))

;;; Restored files

(defun gptel-retention-host-repair-restored ()
  "Give tool regions that gptel restored without an id their property back.
APIs without call ids leave the bare symbol `tool', which gptel does not
read as a tool call (rule H5).  The buffer is not marked as modified."
  (save-restriction
    (widen)
    (with-silent-modifications
      (let ((start (point-min)))
        (while (< start (point-max))
          (let ((end (next-single-property-change start 'gptel nil
                                                  (point-max))))
            (when (eq (get-text-property start 'gptel) 'tool)
              (put-text-property start end 'gptel (list 'tool)))
            (setq start end)))))))

(provide 'gptel-retention-host)
;;; gptel-retention-host.el ends here
