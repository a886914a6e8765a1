;;; gptel-retention-compact.el --- Go on from a summary  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A long conversation goes on from a summary of its history (rule L1).  The
;; history ends where a turn does, so that calls and their results stay
;; together.  A model writes the summary from what the backend offers for that;
;; you read and change it; then it takes the place of the history, in one step
;; that can be undone, and the backend retires what it has of that.
;;
;; In the buffer a summary is a turn of its own: a short prompt, and the summary
;; as the response to it.  Every API takes that in front of a prompt.
;;
;; Nobody waits.  Before anything is replaced it is made sure that the history
;; is still what was summarized and that no request is under way.  The text is
;; replaced only once the backend has retired the history; if that is all that
;; happens, the next request just takes it back.

;;; Code:

(require 'cl-lib)
(require 'seq)
(require 'subr-x)
(require 'gptel)
(require 'gptel-retention-rpc)
(require 'gptel-retention-host)
(require 'gptel-retention-turn)
(require 'gptel-retention-sections)
(require 'gptel-retention-tools)

(defcustom gptel-retention-compact-directive "\
A conversation between a user and an assistant gets too long.  You write the summary that takes its
place: the assistant goes on from it and no longer sees what was said.  State what the user wants,
and each instruction and decision that still holds; what was done, with the exact names of files,
functions, commands and values; what was found out, errors and their causes included; and what is
open.  Leave out what was superseded.  Write paragraphs and lists without headings, in the language
of the user.  Only summarize: answer nothing, and go on with nothing."
  "What a model is told that writes a summary of a conversation."
  :type 'string
  :group 'gptel-retention)

(defcustom gptel-retention-auto-compact nil
  "Fraction of the context window from which to compact, nil for never.
With 0.8 a turn that ends with the window filled to 80 percent or more is
followed by what `gptel-retention-compact' does, and the last turns stay,
see `gptel-retention-auto-compact-keep'.  How full it is is known as for
the reminder `context-use'."
  :type '(choice (const :tag "Never" nil) (float :tag "Fraction"))
  :group 'gptel-retention)

(defcustom gptel-retention-auto-compact-keep 3
  "Turns that stay when a conversation is compacted by itself."
  :type 'natnum
  :group 'gptel-retention)

(defcustom gptel-retention-auto-compact-ask t
  "Non-nil means ask before a conversation is compacted by itself.
The summary is then shown as with `gptel-retention-compact'.  With nil it
takes the place of the history as the model wrote it."
  :type 'boolean
  :group 'gptel-retention)

(defconst gptel-retention-compact--prompt "Summarize our conversation so far."
  "The prompt to which the summary is the response.")

;;; The history

(cl-defstruct (gptel-retention-compact--history (:copier nil))
  "What a summary is to stand for.
It is TEXT, between the markers BEG and END of the buffer CHAT.  gptel
makes MESSAGES, JSON bytes, of what is between the markers FROM and END.
ROWS of the log retire with it, once the backend was asked."
  chat from beg end text messages (rows 0))

(defun gptel-retention-compact--history (limit &optional start)
  "Return the history in this buffer that ends at LIMIT at the latest.
It begins with the first turn behind START, a position, if that is given.
Signal a `user-error' if there is no whole turn."
  (pcase-let* ((`(,from . ,beg) (save-excursion
                                  (goto-char limit)
                                  (gptel-retention-host-transcript-start)))
               (ends (seq-filter (lambda (end) (< beg end (1+ limit)))
                                 (gptel-retention-host-turn-ends)))
               (first (if (and start (> start beg))
                          (seq-find (lambda (end)
                                      (or (>= end start)
                                          (not (gptel-retention-host-prompt-p
                                                end start))))
                                    (cons beg ends) limit)
                        beg))
               (end (car (last ends))))
    (unless (and end (< first end))
      (user-error "[retention] No turn ends before point"))
    (unless (= first beg)
      (setq from first
            beg first))
    (make-gptel-retention-compact--history
     :chat (current-buffer)
     :from (copy-marker from)
     ;; What gptel saves at the top is no part of the history.
     :beg (copy-marker beg t)
     :end (copy-marker end)
     :text (buffer-substring-no-properties beg end)
     :messages (gptel-retention-compact--messages from end))))

(defun gptel-retention-compact--messages (from end)
  "Return the messages from FROM to END of this buffer as JSON bytes."
  (gptel-retention-host-encode
   (vconcat (gptel-retention-host-parse (gptel-retention-host-outline)
                                        from end))))

(defun gptel-retention-compact--check (history)
  "Signal a `user-error' unless HISTORY can be replaced now."
  (let ((chat (gptel-retention-compact--history-chat history)))
    (unless (buffer-live-p chat)
      (user-error "[retention] The conversation's buffer is gone"))
    (with-current-buffer chat
      (barf-if-buffer-read-only)
      (when (gptel-retention-host-busy-p)
        (user-error "[retention] A request is under way"))
      (save-restriction
        (widen)
        (let ((from (gptel-retention-compact--history-from history))
              (beg (gptel-retention-compact--history-beg history))
              (end (gptel-retention-compact--history-end history)))
          (unless (and (< beg end)
                       (equal (buffer-substring-no-properties beg end)
                              (gptel-retention-compact--history-text history))
                       (equal (gptel-retention-compact--messages from end)
                              (gptel-retention-compact--history-messages
                               history)))
            (user-error "[retention] The history has changed since it was \
summarized")))))))

(defun gptel-retention-compact--tokens (bytes)
  "Return about how many tokens BYTES are, as text."
  (format "about %d tokens" (/ bytes 4)))

(defun gptel-retention-compact--size (history)
  "Return about how many tokens HISTORY takes up, as text."
  (gptel-retention-compact--tokens
   (length (gptel-retention-compact--history-messages history))))

;;; Asking the backend

(defun gptel-retention-compact--retire (history confirm function)
  "Ask what a summary of HISTORY is written from, and call FUNCTION later.
With CONFIRM have the history retired.  FUNCTION gets the answer, or nil."
  (let ((info (gptel-retention-host-outline))
        (messages (gptel-retention-compact--history-messages history)))
    (gptel-retention-tools-ask
     "conversation/retire"
     (list :id (gptel-retention-turn-id)
           :array (or (gptel-retention-host-array-name info) "")
           :identity (gptel-retention-host-identity info)
           :before (gptel-retention-rpc-text messages)
           :confirm (if confirm t :json-false))
     function)))

;;; Asking a model

(defvar-local gptel-retention-compact--pending nil
  "The buffer where a summary of this conversation is made or edited.")

(defun gptel-retention-compact--pending-p ()
  "Return non-nil if a summary of this conversation is being made or edited."
  (buffer-live-p gptel-retention-compact--pending))

(defun gptel-retention-compact--start (history model function)
  "Have MODEL summarize HISTORY, and call FUNCTION with that and a summary.
MODEL is (BACKEND . MODEL), or nil for that of this buffer."
  (gptel-retention-compact--check history)
  (gptel-retention-compact--retire
   history nil
   (lambda (answer)
     (if (null (plist-get answer :text))
         (message "[retention] There is no history to summarize")
       (setf (gptel-retention-compact--history-rows history)
             (or (plist-get answer :rows) 0))
       (gptel-retention-compact--ask-model
        (plist-get answer :text) model
        (lambda (summary)
          (funcall function history
                   (gptel-retention-host-response-text summary))))))))

(defun gptel-retention-compact--ask-model (text model function)
  "Have MODEL summarize TEXT, and call FUNCTION with the summary, later.
MODEL is as in `gptel-retention-compact--start'.  The request is made in
a buffer of its own, apart from the conversation."
  (let ((chat (current-buffer))
        (buffer (generate-new-buffer " *gptel-retention summary*" t))
        (model (or model (cons gptel-backend gptel-model)))
        (limit gptel-max-tokens))
    (setq gptel-retention-compact--pending buffer)
    (message "[retention] %s summarizes the history" (cdr model))
    (with-current-buffer buffer
      (setq-local gptel-backend (car model)
                  gptel-model (cdr model)
                  gptel-max-tokens limit)
      (gptel-retention-host-ask-text
       text gptel-retention-compact-directive
       (lambda (summary problem)
         ;; Later: gptel is not done with the buffer.
         (run-at-time 0 nil #'gptel-retention-compact--take
                      chat buffer function summary problem))))))

(defun gptel-retention-compact--take (chat buffer function summary problem)
  "Call FUNCTION with SUMMARY in CHAT, or tell PROBLEM if there is none.
It was made in BUFFER; if that is gone, nobody wants it any more."
  (when (buffer-live-p buffer)
    (kill-buffer buffer)
    (when (buffer-live-p chat)
      (with-current-buffer chat
        (gptel-retention-rpc-demote "The history was not compacted"
          (if (or (null summary) (string-blank-p summary))
              (message "[retention] There is no summary: %s"
                       (or problem "the answer is blank"))
            (funcall function (string-trim summary))))))))

;;; Editing the summary

(defvar-local gptel-retention-compact--edited nil
  "The history that the summary in this buffer is to stand for.")

(defvar-keymap gptel-retention-compact-mode-map
  :doc "Keymap of `gptel-retention-compact-mode'."
  "C-c C-c" #'gptel-retention-compact-accept
  "C-c C-k" #'gptel-retention-compact-discard)

(define-derived-mode gptel-retention-compact-mode text-mode "Summary"
  "Major mode of a buffer with a summary that is to replace a history.
\\{gptel-retention-compact-mode-map}"
  :interactive nil
  (setq header-line-format '(:eval (gptel-retention-compact--header)))
  (visual-line-mode))

(defun gptel-retention-compact--header ()
  "Return the header line of a summary."
  (substitute-command-keys
   (format "\\<gptel-retention-compact-mode-map>\
\\[gptel-retention-compact-accept] replaces the history, %s, by this, %s; \
\\[gptel-retention-compact-discard] discards it"
           (gptel-retention-compact--size gptel-retention-compact--edited)
           (gptel-retention-compact--tokens (position-bytes (point-max))))))

(defun gptel-retention-compact--edit (history summary)
  "Show SUMMARY of HISTORY in a buffer, to be edited and accepted."
  (let ((buffer (generate-new-buffer
                 (format "*retention summary of %s*" (buffer-name)))))
    (setq gptel-retention-compact--pending buffer)
    (with-current-buffer buffer
      (insert summary)
      (goto-char (point-min))
      (gptel-retention-compact-mode)
      (setq gptel-retention-compact--edited history
            buffer-undo-list nil))
    (pop-to-buffer buffer)))

(defun gptel-retention-compact-accept ()
  "Replace the history by the summary in this buffer."
  (interactive nil gptel-retention-compact-mode)
  (let ((history gptel-retention-compact--edited)
        (summary (string-trim (buffer-substring-no-properties
                               (point-min) (point-max)))))
    (when (string-empty-p summary)
      (user-error "[retention] The summary is empty"))
    (gptel-retention-compact--check history)
    (with-current-buffer (gptel-retention-compact--history-chat history)
      (gptel-retention-compact--finish history summary))))

(defun gptel-retention-compact-discard ()
  "Leave the history as it is, and discard the summary in this buffer."
  (interactive nil gptel-retention-compact-mode)
  (quit-window t))

;;; Replacing

(defun gptel-retention-compact--finish (history summary)
  "Replace HISTORY in this buffer by SUMMARY, once it is retired.
If the backend knows nothing of it, there is nothing to retire."
  (gptel-retention-compact--check history)
  (if (zerop (gptel-retention-compact--history-rows history))
      (gptel-retention-compact--replace history summary)
    (gptel-retention-compact--retire
     history t
     (lambda (answer)
       (if (not (eq t (plist-get answer :retired)))
           (message "[retention] The history was not retired, and stays")
         (gptel-retention-rpc-demote "The history stays"
           (gptel-retention-compact--check history)
           (gptel-retention-compact--replace history summary)))))))

(defun gptel-retention-compact--replace (history summary)
  "Put SUMMARY in the place of HISTORY in this buffer, in one step."
  (let ((point (copy-marker (point) t))
        (beg (gptel-retention-compact--history-beg history))
        (end (gptel-retention-compact--history-end history)))
    (gptel-retention-compact--make-room-for-undo
     (gptel-retention-compact--history-text history))
    (undo-boundary)
    (atomic-change-group
      (save-restriction
        (widen)
        (goto-char beg)
        (delete-region beg end)
        (gptel-retention-host-insert-turn gptel-retention-compact--prompt
                                          summary)))
    (undo-boundary)
    (goto-char point)
    (dolist (marker (list point beg end
                          (gptel-retention-compact--history-from history)))
      (set-marker marker nil)))
  (gptel-retention-compact--close)
  (message "[retention] The history, %s, is a summary now, %s; %s"
           (gptel-retention-compact--size history)
           (gptel-retention-compact--tokens (string-bytes summary))
           (substitute-command-keys "\\[undo] brings it back")))

(defun gptel-retention-compact--make-room-for-undo (text)
  "See to it that Emacs does not soon forget how to bring TEXT back."
  (let ((bytes (* 2 (string-bytes text))))
    (setq-local undo-limit (+ undo-limit bytes)
                undo-strong-limit (+ undo-strong-limit bytes))))

(defun gptel-retention-compact--close ()
  "Kill the buffer where the summary of this conversation was edited."
  (when (gptel-retention-compact--pending-p)
    (let ((window (get-buffer-window gptel-retention-compact--pending t)))
      (if window
          (quit-window t window)
        (kill-buffer gptel-retention-compact--pending)))))

;;; The command

;;;###autoload
(defun gptel-retention-compact (&optional choose)
  "Replace the history before point by a summary of it.
The history ends with the last turn that ends before point; with an
active region it is the turns in that.  This conversation's model, or one
that you CHOOSE with a prefix argument, writes the summary.  It is shown
for you to edit; \\<gptel-retention-compact-mode-map>\
\\[gptel-retention-compact-accept] then puts it in the place of the
history, \\[gptel-retention-compact-discard] leaves everything as it is.
\\<global-map>\\[undo] brings the history back, and with it what was sent.

What applies now (`gptel-retention-sections') is told to the model again
with the next request."
  (interactive "P")
  (let ((history (gptel-retention-compact--history-at-point)))
    (gptel-retention-compact--start
     history
     (and choose (gptel-retention-host-read-model))
     #'gptel-retention-compact--edit)
    (deactivate-mark)))

(defun gptel-retention-compact--history-at-point ()
  "Return the history that the command is about.
Signal a `user-error' if it cannot be compacted."
  (unless (gptel-retention-turn-enabled-p)
    (user-error "[retention] This conversation is not kept; \
M-x gptel-retention-mode"))
  (when (gptel-retention-compact--pending-p)
    (if (eq ?\s (aref (buffer-name gptel-retention-compact--pending) 0))
        ;; The user does not want to wait for that one.
        (progn (gptel-retention-host-abort gptel-retention-compact--pending)
               (kill-buffer gptel-retention-compact--pending))
      (pop-to-buffer gptel-retention-compact--pending)
      (user-error "[retention] Accept or discard this summary first")))
  (when (gptel-retention-host-busy-p)
    (user-error "[retention] A request is under way"))
  (when (and (gptel-retention-host-branching-p) (not (use-region-p)))
    (user-error "[retention] Branches share what is before point: \
mark what to compact"))
  (condition-case err
      (gptel-retention-turn-open)
    (gptel-retention-error
     (user-error "[retention] %s" (error-message-string err))))
  (if (use-region-p)
      (gptel-retention-compact--history (region-end) (region-beginning))
    (gptel-retention-compact--history (point))))

;;; By itself

(defvar-local gptel-retention-compact--declined nil
  "Non-nil if the user does not want this conversation compacted now.")

(defun gptel-retention-compact-after-turn (&rest _)
  "Compact this conversation soon if it is time to.
For `gptel-post-response-functions'."
  (when gptel-retention-auto-compact
    ;; Later: other functions of that hook come first.
    (run-at-time 0 nil #'gptel-retention-compact--by-itself
                 (current-buffer))))

(defun gptel-retention-compact--full-p ()
  "Return non-nil if the context window is full by the user's measure."
  (let ((gptel-retention-context-steps
         (list (* 100 gptel-retention-auto-compact))))
    (gptel-retention-reminders-context-step)))

(defun gptel-retention-compact--by-itself (buffer)
  "Compact the conversation in BUFFER if it is time to."
  (when (buffer-live-p buffer)
    (with-current-buffer buffer
      (gptel-retention-rpc-demote "The history was not compacted"
        (cond ((not (and gptel-retention-auto-compact
                         (gptel-retention-compact--full-p)))
               (setq gptel-retention-compact--declined nil))
              ((or gptel-retention-compact--declined
                   (gptel-retention-compact--pending-p)
                   (gptel-retention-host-busy-p)
                   (gptel-retention-host-branching-p)))
              (t (gptel-retention-compact--offer
                  (gptel-retention-compact--old-turns))))))))

(defun gptel-retention-compact--old-turns ()
  "Return the history in front of what is to stay, or nil.
It is nil as well if it is less than a quarter of the conversation, so
that one summary does not follow the other."
  (let* ((ends (gptel-retention-host-turn-ends))
         (end (car (last ends (1+ gptel-retention-auto-compact-keep)))))
    (when (and end (> (length ends) gptel-retention-auto-compact-keep))
      (let ((history (gptel-retention-compact--history end)))
        (and (< (/ (- (point-max) (point-min)) 4)
                (length (gptel-retention-compact--history-text history)))
             history)))))

(defun gptel-retention-compact--offer (history)
  "Compact HISTORY, after asking if the user wants that.
Where nobody looks at the conversation there is nobody to ask."
  (cond ((null history))
        ((not gptel-retention-auto-compact-ask)
         (gptel-retention-compact--start history nil
                                         #'gptel-retention-compact--finish))
        ((or (active-minibuffer-window)
             (not (get-buffer-window (current-buffer) t))))
        ((y-or-n-p (format "The context is filling up.  Summarize the \
history in %s, %s? " (buffer-name) (gptel-retention-compact--size history)))
         (gptel-retention-compact--start history nil
                                         #'gptel-retention-compact--edit))
        (t (setq gptel-retention-compact--declined t))))

(provide 'gptel-retention-compact)
;;; gptel-retention-compact.el ends here
