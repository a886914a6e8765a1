;;; gptel-retention-inspect.el --- What was sent  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; The indicator in the mode line, the buffers that show the requests, the log,
;; the objects and the tool outputs of a conversation, and the menu.  What these show comes from
;; the backend's `inspect' methods, which the command line tool uses as well.
;;
;; Only commands of the user wait for the backend here.

;;; Code:

(require 'button)
(require 'cl-lib)
(require 'seq)
(require 'subr-x)
(require 'transient)
(require 'gptel-retention-rpc)
(require 'gptel-retention-turn)
(require 'gptel-retention-sections)

(declare-function gptel-retention-mode "gptel-retention" (&optional arg))
(declare-function gptel-retention-set-goal "gptel-retention" (objective))
(declare-function gptel-retention-forget "gptel-retention" ())
(declare-function gptel-retention-export "gptel-retention" (file))
(declare-function gptel-retention-import "gptel-retention"
                  (file &optional as-new))
(declare-function gptel-retention-compact "gptel-retention-compact"
                  (&optional choose))
(declare-function gptel-retention-restart-backend "gptel-retention" ())
(declare-function gptel-retention-install-backend "gptel-retention"
                  (&optional dense))
(declare-function gptel-retention-search "gptel-retention-search"
                  (query &optional only))
(declare-function gptel-retention-resume "gptel-retention-search"
                  (source &optional here))
(declare-function gptel-retention-learn "gptel-retention-search" (file))

(defcustom gptel-retention-status-requests 20
  "Requests that `gptel-retention-status' shows, the newest first."
  :type 'natnum
  :group 'gptel-retention)

(defcustom gptel-retention-log-rows 200
  "Rows that `gptel-retention-log' shows, the last ones of the log."
  :type 'natnum
  :group 'gptel-retention)

(defcustom gptel-retention-output-rows 200
  "Outputs that `gptel-retention-outputs' shows, the newest first."
  :type 'natnum
  :group 'gptel-retention)

(defconst gptel-retention-inspect--timeout 10
  "Seconds that a command of the user waits for the backend.")

;;; The indicator

(defvar-local gptel-retention-inspect--indicator nil
  "What the mode line shows of the last request, a string, or nil.")

(defun gptel-retention-inspect-indicator ()
  "Return the indicator of this conversation for the mode line.
It is \" R\" before the first request, \" R!\" when the last one went
out as gptel made it.  Otherwise it is like \" R:2+1 98%\": two sections
and one reminder were delivered, and 98 % of the messages repeat the
request before."
  (or gptel-retention-inspect--indicator
      (gptel-retention-inspect--lighter " R" "No request so far")))

(defun gptel-retention-inspect-note (outcome)
  "Let the mode line show OUTCOME, that of the last prepare.
For `gptel-retention-after-prepare-functions'."
  (setq gptel-retention-inspect--indicator
        (gptel-retention-inspect--lighter
         (gptel-retention-inspect--short outcome)
         (string-join (gptel-retention-inspect--outcome outcome) "\n")))
  (force-mode-line-update))

(defun gptel-retention-inspect-forget ()
  "Show nothing of the last request any more."
  (setq gptel-retention-inspect--indicator nil)
  (force-mode-line-update))

(defvar gptel-retention-inspect--lighter-map
  (define-keymap "<mode-line> <mouse-1>" #'gptel-retention-menu)
  "Keymap of the indicator.")

(defun gptel-retention-inspect--lighter (text help)
  "Return TEXT for the mode line, explained by HELP."
  (propertize text
              'help-echo (concat "Retention\n" help "\nmouse-1: menu")
              'mouse-face 'mode-line-highlight
              'local-map gptel-retention-inspect--lighter-map))

(defun gptel-retention-inspect--short (outcome)
  "Return OUTCOME in a few characters, for the mode line."
  (let ((sections (length (plist-get outcome :sections)))
        (reminders (length (plist-get outcome :reminders)))
        (share (gptel-retention-inspect--share outcome)))
    (if (plist-get outcome :error)
        " R!"
      ;; The mode line reads a % as a construct of its own.
      (concat " R"
              (cond ((> reminders 0) (format ":%d+%d" sections reminders))
                    ((> sections 0) (format ":%d" sections)))
              (and share (format " %d%%%%" share))))))

(defun gptel-retention-inspect--share (outcome)
  "Return the percentage of OUTCOME's array that was sent before, or nil."
  (let ((reused (or (plist-get outcome :reused) 0))
        (total (or (plist-get outcome :total) 0)))
    (and (> total 0) (floor (* 100.0 (/ reused (float total)))))))

(defun gptel-retention-inspect--outcome (outcome)
  "Return lines that tell OUTCOME, the plist of a prepare."
  (if-let* ((err (plist-get outcome :error)))
      (list "Sent as gptel made it:" (error-message-string err))
    (let ((share (gptel-retention-inspect--share outcome)))
      (append
       (list (format "Sections delivered: %s"
                     (gptel-retention-inspect--names
                      (mapcar (lambda (section)
                                (format "%s (%s)"
                                        (plist-get section :name)
                                        (plist-get section :reason)))
                              (plist-get outcome :sections))))
             (format "Reminders delivered: %s"
                     (gptel-retention-inspect--names
                      (plist-get outcome :reminders)))
             (format "Earlier deliveries put back: %d"
                     (or (plist-get outcome :restored) 0)))
       (and share
            (list (format "Repeats the request before: %d %% of %s"
                          share (file-size-human-readable
                                 (plist-get outcome :total)))))
       (and (plist-get outcome :seconds)
            (list (format "Took: %.0f ms"
                          (* 1000 (plist-get outcome :seconds)))))
       (mapcar #'gptel-retention-inspect--reason
               (plist-get outcome :reasons))))))

(defun gptel-retention-inspect--names (names)
  "Return the strings in the sequence NAMES as one."
  (if (seq-empty-p names) "none" (mapconcat #'identity names ", ")))

(defun gptel-retention-inspect--reason (reason)
  "Return the plist REASON as a line."
  (concat (plist-get reason :code)
          (let ((detail (plist-get reason :detail)))
            (if (member detail '(nil "")) "" (concat ": " detail)))))

;;; Asking the backend

(defun gptel-retention-inspect-ask (method params)
  "Return what the backend answers to METHOD with PARAMS, a plist.
An error of it is the user's to see."
  (condition-case err
      (let ((answer (gptel-retention-rpc-call
                     method params gptel-retention-inspect--timeout)))
        ;; A result too large for a frame is handed over in a file.
        (if (and (plist-get answer :file) (plist-get answer :sha256))
            (json-parse-string (gptel-retention-rpc-read-text answer)
                               :object-type 'plist :null-object nil
                               :false-object :json-false)
          answer))
    (gptel-retention-error
     (user-error "[retention] %s" (error-message-string err)))))

(defun gptel-retention-inspect-id ()
  "Return the id of this buffer's conversation.
Signal a `user-error' if it has none yet."
  (or (gptel-retention-turn-id)
      (user-error "[retention] No request was sent from this buffer yet")))

;;; Buffers

(defvar-local gptel-retention-inspect--source nil
  "The conversation buffer that this buffer tells about.")

(defvar-keymap gptel-retention-inspect-mode-map
  :doc "Keymap of `gptel-retention-inspect-mode'."
  :parent (make-composed-keymap button-buffer-map special-mode-map)
  "s" #'gptel-retention-status
  "e" #'gptel-retention-explain
  "l" #'gptel-retention-log
  "o" #'gptel-retention-show
  "t" #'gptel-retention-outputs
  "/" #'gptel-retention-search
  "?" #'gptel-retention-menu)

(define-derived-mode gptel-retention-inspect-mode special-mode "Retention"
  "Major mode of buffers that tell what was sent and why.
\\{gptel-retention-inspect-mode-map}"
  :interactive nil
  (setq truncate-lines t))

(defun gptel-retention-inspect-conversation-buffer ()
  "Return the conversation buffer that a command here is about."
  (let ((source (or gptel-retention-inspect--source (current-buffer))))
    (if (buffer-live-p source)
        source
      (user-error "[retention] The conversation's buffer is gone"))))

(defun gptel-retention-inspect--display (name source insert &optional mode)
  "Show the buffer *retention NAME* about the buffer SOURCE.
INSERT is a function that inserts its content, called with SOURCE
current before, and again when the buffer is reverted.  It returns a
function without arguments that inserts.  MODE is the major mode,
`gptel-retention-inspect-mode' by default."
  ;; An error of the backend leaves no empty buffer behind.
  (let* ((fill (with-current-buffer source (funcall insert)))
         (buffer (get-buffer-create (format "*retention %s*" name))))
    (with-current-buffer buffer
      (unless (derived-mode-p 'gptel-retention-inspect-mode)
        (funcall (or mode #'gptel-retention-inspect-mode)))
      (setq gptel-retention-inspect--source source
            revert-buffer-function
            (lambda (&rest _)
              (gptel-retention-inspect--display name source insert)))
      (let ((inhibit-read-only t))
        (erase-buffer)
        (funcall fill)
        (goto-char (point-min))))
    (display-buffer buffer)
    buffer))

(defun gptel-retention-inspect--heading (text)
  "Insert TEXT as a heading."
  (insert (propertize text 'face 'bold) "\n"))

(defun gptel-retention-inspect--digest (digest)
  "Insert the start of DIGEST as a button to show the object."
  (insert-text-button (substring digest 0 (min 12 (length digest)))
                      'action (lambda (_) (gptel-retention-show digest))
                      'help-echo digest
                      'follow-link t))

(defun gptel-retention-inspect-size (bytes)
  "Return the size BYTES in a few characters."
  (file-size-human-readable bytes nil " " "B"))

(defun gptel-retention-inspect-time (seconds)
  "Return SECONDS since the epoch as a local time."
  (format-time-string "%F %T" seconds))

;;; Status

;;;###autoload
(defun gptel-retention-status ()
  "Show the backend and the last requests of this conversation."
  (interactive)
  (let ((source (gptel-retention-inspect-conversation-buffer)))
    (gptel-retention-inspect--display
     "status" source #'gptel-retention-inspect--status)))

(defun gptel-retention-inspect--status ()
  "Ask for the status of this conversation; return a function to insert it."
  (let* ((name (buffer-name))
         (id (gptel-retention-turn-id))
         (last (gptel-retention-turn-last))
         (answer (and id (gptel-retention-inspect-ask
                          "inspect/requests"
                          (list :id id
                                :limit gptel-retention-status-requests))))
         (outputs (and id
                       (gptel-retention-rpc-capable-p "output/list")
                       (gptel-retention-inspect-ask
                        "output/list"
                        (list :conversation id
                              :limit gptel-retention-output-rows))))
         (status (gptel-retention-rpc-status)))
    (lambda ()
      (gptel-retention-inspect--heading (format "Conversation in %s" name))
      (insert (format "Id:      %s\n" (or id "none yet")))
      (gptel-retention-inspect--insert-backend status)
      (when last
        (insert "\n")
        (gptel-retention-inspect--heading "Last request")
        (dolist (line (gptel-retention-inspect--outcome last))
          (insert line "\n")))
      (when outputs
        (insert "\n")
        (gptel-retention-inspect--insert-stats outputs))
      (when answer
        (insert "\n")
        (gptel-retention-inspect--insert-requests answer)))))

(defun gptel-retention-inspect--insert-backend (status)
  "Insert STATUS, the plist of `gptel-retention-rpc-status'."
  (insert "Backend: "
          (pcase (plist-get status :state)
            ('ready (format "ready, version %s\nStore:   %s"
                            (plist-get status :version)
                            (plist-get status :store)))
            ('paused (format "failed, left alone for %d s"
                             (ceiling (plist-get status :pause))))
            (state (symbol-name state)))
          "\n"))

(defun gptel-retention-inspect--insert-requests (answer)
  "Insert ANSWER, the backend's to a question for requests."
  (let ((refusal (plist-get answer :refusal))
        (requests (plist-get answer :requests)))
    (gptel-retention-inspect--heading
     (format "Requests in %d turns, the newest first"
             (plist-get answer :turns)))
    (when refusal
      (insert (format "The provider refused an edited request (HTTP %s): \
edits are held back at step %s.\n"
                      (plist-get refusal :status) (plist-get refusal :step))))
    (if (seq-empty-p requests)
        (insert "None so far.\n")
      (seq-do #'gptel-retention-inspect--insert-request requests))))

(defun gptel-retention-inspect--insert-request (request)
  "Insert REQUEST, a plist, as a line and what belongs to it."
  (let ((number (plist-get request :request)))
    (insert-text-button (format "#%s" number)
                        'action (lambda (_) (gptel-retention-explain number))
                        'follow-link t)
    (indent-to 6 1))
  (insert (format "turn %-3s %-6s %s  %7s  %s kept, %s new\n"
                  (plist-get request :turn) (plist-get request :origin)
                  (gptel-retention-inspect-time (plist-get request :at))
                  (file-size-human-readable (plist-get request :bytes))
                  (plist-get request :kept) (plist-get request :new)))
  (pcase-dolist (`(,title . ,key)
                 '(("sections" . :sections) ("reminders" . :reminders)))
    (let ((names (plist-get request key)))
      (unless (seq-empty-p names)
        (insert "      " title ": "
                (gptel-retention-inspect--names names) "\n"))))
  (seq-do (lambda (reason)
            (insert "      " (gptel-retention-inspect--reason reason) "\n"))
          (plist-get request :reasons)))

;;; Explain

(defvar-local gptel-retention-inspect--request nil
  "Number of the request that this buffer explains, nil for none.")

(defvar-keymap gptel-retention-explain-mode-map
  :doc "Keymap of `gptel-retention-explain-mode'."
  :parent gptel-retention-inspect-mode-map
  "n" #'gptel-retention-explain-next
  "p" #'gptel-retention-explain-previous)

(define-derived-mode gptel-retention-explain-mode gptel-retention-inspect-mode
  "Retention-Explain"
  "Major mode of the buffer that explains a request.
\\{gptel-retention-explain-mode-map}"
  :interactive nil
  (setq truncate-lines nil
        fill-column 80))

;;;###autoload
(defun gptel-retention-explain (&optional request)
  "Explain the last request of this conversation, or REQUEST, a number.
It is shown what of the request before was kept, what was put in, where
the two first differ and why, and what the provider reported.
Interactively a numeric prefix argument is the number."
  (interactive (list (and current-prefix-arg
                          (prefix-numeric-value current-prefix-arg))))
  (gptel-retention-inspect--display
   "explain" (gptel-retention-inspect-conversation-buffer)
   (lambda () (gptel-retention-inspect--explain (or request 0)))
   #'gptel-retention-explain-mode))

(defun gptel-retention-explain-next (&optional count)
  "Explain the next request, or with COUNT that many further on."
  (interactive "p" gptel-retention-explain-mode)
  (let ((request (+ (or gptel-retention-inspect--request 0) (or count 1))))
    (if (< request 1)
        (user-error "[retention] No earlier request")
      (gptel-retention-explain request))))

(defun gptel-retention-explain-previous (&optional count)
  "Explain the request before, or with COUNT that many further back."
  (interactive "p" gptel-retention-explain-mode)
  (gptel-retention-explain-next (- (or count 1))))

(defun gptel-retention-inspect--explain (request)
  "Ask why REQUEST, 0 for the last one, was as it was.
Return a function to insert the answer."
  (let* ((name (buffer-name))
         (answer (gptel-retention-inspect-ask
                  "inspect/explain"
                  (list :id (gptel-retention-inspect-id)
                        :request request
                        :limit 1)))
         (found (seq-find #'identity (plist-get answer :requests))))
    (lambda ()
      (setq gptel-retention-inspect--request (plist-get found :request))
      (if found
          (gptel-retention-inspect--insert-explained
           found name (plist-get answer :total))
        (insert (format "No request of %s so far.\n" name))))))

(defun gptel-retention-inspect--insert-explained (request name total)
  "Insert the explanation of REQUEST, one of TOTAL in the conversation NAME."
  (gptel-retention-inspect--heading
   (format "Request %s of %s in %s (%s), turn %s, %s"
           (plist-get request :request) total name
           (plist-get request :origin) (plist-get request :turn)
           (gptel-retention-inspect-time (plist-get request :at))))
  (insert "\n")
  (seq-do (lambda (line)
            (let ((start (point))
                  (fill-prefix (make-string 11 ?\s))
                  ;; A long word stays beside its label.
                  (fill-nobreak-predicate
                   (list (lambda () (<= (current-column) 11)))))
              (insert (format "%-11s%s\n" (plist-get line :label)
                              (plist-get line :text)))
              ;; The spaces in a text that was sent are not ours to change.
              (fill-region start (point) nil t)))
          (plist-get request :lines)))

;;; Log

;;;###autoload
(defun gptel-retention-log (&optional bodies)
  "Show the log of this conversation.
With a prefix argument BODIES show the stored texts as well."
  (interactive "P")
  (let ((source (gptel-retention-inspect-conversation-buffer)))
    (gptel-retention-inspect--display
     "log" source
     (lambda () (gptel-retention-inspect--log (and bodies t))))))

(defun gptel-retention-inspect--log (bodies)
  "Ask for the log of this conversation; return a function to insert it.
BODIES non-nil asks for the texts too."
  (let* ((name (buffer-name))
         (answer (gptel-retention-inspect-ask
                  "inspect/log"
                  (list :id (gptel-retention-inspect-id)
                        :bodies (if bodies t :json-false)
                        :limit gptel-retention-log-rows)))
         (rows (plist-get answer :rows))
         (total (plist-get answer :total)))
    (lambda ()
      (gptel-retention-inspect--heading
       (format "Log of %s: %d rows%s" name total
               (if (< (length rows) total)
                   (format ", the last %d shown" (length rows))
                 "")))
      (seq-do #'gptel-retention-inspect--insert-row rows))))

(defun gptel-retention-inspect--insert-row (row)
  "Insert ROW, a plist, as a line and what belongs to it."
  (let ((delivery (plist-get row :delivery))
        (round (plist-get row :round)))
    (insert (format "%5s  %-9s %-9s " (plist-get row :row)
                    (plist-get row :role) (plist-get row :face)))
    (gptel-retention-inspect--digest (plist-get row :digest))
    (when-let* ((bytes (plist-get row :bytes)))
      (insert (format "  %7s" (file-size-human-readable bytes))))
    (when round
      (insert (format "  round %s" round)))
    (insert "\n")
    (when delivery
      (gptel-retention-inspect--insert-delivery delivery))
    (when-let* ((body (plist-get row :body)))
      (insert (replace-regexp-in-string "^" "       | " body) "\n"))))

(defun gptel-retention-inspect--insert-delivery (delivery)
  "Insert what DELIVERY, a plist, carried."
  (insert (format "       delivery of turn %s%s: " (plist-get delivery :turn)
                  (if (eq t (plist-get delivery :inside))
                      ", inside this message" "")))
  (gptel-retention-inspect--digest (plist-get delivery :text))
  (insert "\n")
  (seq-do (lambda (section)
            (insert (format "         %s%s " (plist-get section :name)
                            (if (eq t (plist-get section :inactive))
                                " (inactive)" "")))
            (gptel-retention-inspect--digest (plist-get section :body))
            (insert "\n"))
          (plist-get delivery :sections))
  (unless (seq-empty-p (plist-get delivery :reminders))
    (insert "         reminders: "
            (gptel-retention-inspect--names (plist-get delivery :reminders))
            "\n")))

;;; Objects

(defun gptel-retention-inspect--digest-at-point ()
  "Return the digest at point, or nil."
  (if-let* ((button (button-at (point)))
            (digest (button-get button 'help-echo)))
      digest
    (save-excursion
      (skip-chars-backward "0-9a-f")
      (and (looking-at "[0-9a-f]\\{6,64\\}\\_>")
           (match-string-no-properties 0)))))

;;;###autoload
(defun gptel-retention-show (digest)
  "Show the stored object whose digest begins with DIGEST.
Interactively it is the one at point, or it is read."
  (interactive
   (list (or (gptel-retention-inspect--digest-at-point)
             (read-string "Digest (hexadecimal, or its start): "))))
  (gptel-retention-inspect--display
   "object" (gptel-retention-inspect-conversation-buffer)
   (lambda ()
     (let ((answer (gptel-retention-inspect-ask "inspect/object"
                                                 (list :digest digest))))
       (lambda () (gptel-retention-inspect--insert-object answer))))))

(defun gptel-retention-inspect--insert-object (object)
  "Insert OBJECT, a plist."
  (gptel-retention-inspect--heading
   (format "%s %s, %s bytes" (plist-get object :kind)
           (plist-get object :digest) (plist-get object :bytes)))
  (let ((section (plist-get object :section)))
    (insert "\n"
            (if section
                (format "%s (%s, %s)\n\n%s"
                        (plist-get section :title)
                        (plist-get section :name)
                        (plist-get section :kind)
                        (or (plist-get section :body) "Nothing to tell."))
              (plist-get object :text))
            "\n")))

;;; Outputs of tools

;;;###autoload
(defun gptel-retention-outputs ()
  "Show the outputs of tools that are kept of this conversation.
It is also shown what that saves, and how often the model had to ask for
what an excerpt left out."
  (interactive)
  (gptel-retention-inspect--display
   "outputs" (gptel-retention-inspect-conversation-buffer)
   #'gptel-retention-inspect--outputs))

(defun gptel-retention-inspect--outputs ()
  "Ask for the outputs of this conversation; return a function to insert."
  (let* ((name (buffer-name))
         (answer (gptel-retention-inspect-ask
                  "output/list"
                  (list :conversation (gptel-retention-inspect-id)
                        :limit gptel-retention-output-rows)))
         (outputs (plist-get answer :outputs)))
    (lambda ()
      (gptel-retention-inspect--heading (format "Outputs of tools in %s" name))
      (gptel-retention-inspect--insert-stats answer)
      (insert "\n")
      (if (seq-empty-p outputs)
          (insert "None kept so far.\n")
        (seq-do #'gptel-retention-inspect--insert-output outputs)))))

(defun gptel-retention-inspect--insert-stats (answer)
  "Insert the account of outputs in ANSWER of the backend."
  (let* ((stats (plist-get answer :stats))
         (get (lambda (key) (or (plist-get stats key) 0))))
    (insert (format "Outputs: %d large, %d sent as excerpts, %d repeated\n"
                    (funcall get :large) (funcall get :excerpts)
                    (funcall get :duplicates))
            (format "Sent:    %d of %d characters; %d tokens less so far\n"
                    (funcall get :shown) (funcall get :chars)
                    (funcall get :token_turns))
            (format "Recalls: %d, %d of them of a whole output"
                    (funcall get :recalls) (funcall get :whole_recalls)))
    (when (> (funcall get :rate) (or (plist-get answer :high_rate) 1))
      (insert (format "\n         %.0f %% of the excerpts were not enough: \
raise their limits"
                      (* 100 (funcall get :rate)))))
    (insert "\n")))

(defun gptel-retention-inspect--insert-output (output)
  "Insert OUTPUT, a plist, as a line and what belongs to it."
  (let ((id (plist-get output :id))
        (count (lambda (key) (or (plist-get output key) 0))))
    (insert-text-button id
                        'action (lambda (_) (gptel-retention-show-output id))
                        'help-echo "Show the whole output"
                        'follow-link t)
    (insert (format "  %s  %s  %s, %d lines, %d of %d characters sent (%s)\n"
                    (gptel-retention-inspect-time (funcall count :at))
                    (plist-get output :tool)
                    (gptel-retention-inspect-size (funcall count :bytes))
                    (funcall count :lines) (funcall count :shown)
                    (funcall count :chars) (plist-get output :strategy))
            "      " (or (plist-get output :call) "") "\n")
    (when (> (funcall count :recalls) 0)
      (insert (format "      recalled %d times, %d times whole\n"
                      (funcall count :recalls)
                      (funcall count :whole_recalls))))))

(define-derived-mode gptel-retention-output-mode gptel-retention-inspect-mode
  "Retention-Output"
  "Major mode of buffers that show a whole output of a tool.
Its settings keep Emacs fast where lines are very long.
\\{gptel-retention-output-mode-map}"
  :interactive nil
  (setq buffer-undo-list t
        bidi-paragraph-direction 'left-to-right)
  (setq-local bidi-inhibit-bpa t
              long-line-threshold 5000
              auto-hscroll-mode 'current-line))

;;;###autoload
(defun gptel-retention-show-output (id)
  "Show the whole output of a tool that is kept as ID.
Interactively ID is read; `gptel-retention-outputs' lists them."
  (interactive (list (read-string "Id of the output: ")))
  (gptel-retention-inspect--display
   (format "output %s" id) (gptel-retention-inspect-conversation-buffer)
   (lambda ()
     (let ((pages (gptel-retention-inspect--pages id)))
       (lambda () (apply #'insert pages))))
   #'gptel-retention-output-mode))

(defun gptel-retention-inspect-page (id answer)
  "Return the text in ANSWER, a page of ID, without the page's heading."
  (replace-regexp-in-string
   (format "\\`\\[%s: characters .*\\]\n" (regexp-quote id)) ""
   (gptel-retention-rpc-read-text
    (or (plist-get answer :text_file) (plist-get answer :text) ""))
   t t))

(defun gptel-retention-inspect--pages (id)
  "Return the text of the output ID, a list of strings that join to it."
  (let ((offset 0) pages)
    (while offset
      (let ((answer (gptel-retention-inspect-ask
                     "output/recall"
                     (list :conversation (or (gptel-retention-turn-id) "")
                           :id id :offset offset :by "user"))))
        (push (gptel-retention-inspect-page id answer) pages)
        (let ((more (or (plist-get answer :more) 0)))
          (setq offset (and (> more offset) more)))))
    (nreverse pages)))

;;; Sections

;;;###autoload
(defun gptel-retention-list-sections ()
  "Show which sections there are and what they say here."
  (interactive)
  (gptel-retention-inspect--display
   "sections" (gptel-retention-inspect-conversation-buffer)
   #'gptel-retention-inspect--sections))

(defun gptel-retention-inspect--sections ()
  "Read the sections of this conversation; return a function to insert them."
  (let* ((name (buffer-name))
         (selected gptel-retention-sections)
         (definitions gptel-retention-section-definitions)
         (readings (mapcar #'gptel-retention-sections-read selected)))
    (lambda ()
      (gptel-retention-inspect--heading (format "Sections of %s" name))
      (cl-mapc #'gptel-retention-inspect--insert-reading selected readings)
      (insert "\n")
      (gptel-retention-inspect--heading "Not selected")
      (pcase-dolist (`(,other . ,section) definitions)
        (unless (memq other selected)
          (insert (format "%s: %s\n" other
                          (or (gptel-retention-section-doc section)
                              (gptel-retention-section-title section)))))))))

(defun gptel-retention-inspect--insert-reading (name reading)
  "Insert the section NAME and READING, (BODY PROBLEM SECONDS)."
  (pcase-let ((`(,body ,problem ,seconds) reading))
    (insert (format "\n%s (%.0f ms)\n" (propertize (symbol-name name)
                                                   'face 'underline)
                    (* 1000 seconds))
            (cond (problem (concat "Could not be read: " problem))
                  (body body)
                  (t "Nothing to tell."))
            "\n")))

;;; Menu

;;;###autoload (autoload 'gptel-retention-menu "gptel-retention-inspect" nil t)
(transient-define-prefix gptel-retention-menu ()
  "What can be done with this conversation."
  [["Show"
    ("s" "status" gptel-retention-status)
    ("e" "explain" gptel-retention-explain)
    ("l" "log" gptel-retention-log)
    ("o" "object" gptel-retention-show)
    ("t" "outputs of tools" gptel-retention-outputs)
    ("S" "sections" gptel-retention-list-sections)]
   ["Conversation"
    ("m" "turn on or off" gptel-retention-mode)
    ("g" "goal" gptel-retention-set-goal)
    ("c" "compact" gptel-retention-compact)
    ("x" "export" gptel-retention-export)
    ("I" "import" gptel-retention-import)
    ("F" "forget" gptel-retention-forget)]
   ["Evidence"
    ("/" "search" gptel-retention-search)
    ("R" "resume" gptel-retention-resume)
    ("L" "learn" gptel-retention-learn)]
   ["Backend"
    ("r" "restart" gptel-retention-restart-backend)
    ("i" "install" gptel-retention-install-backend)]])

(provide 'gptel-retention-inspect)
;;; gptel-retention-inspect.el ends here
