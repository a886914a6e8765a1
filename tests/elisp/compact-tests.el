;;; compact-tests.el --- Going on from a summary  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Where turns end and what a history is, in text that is made by hand; then
;; what the backend and a model are asked, and what happens where one of them
;; fails.  Both are real processes that follow a script.

;;; Code:

(require 'test-helper)
(require 'turn-tests)
(require 'gptel-retention)

(defmacro compact-tests-with-text (mode pieces &rest body)
  "Run BODY in a buffer in MODE with PIECES.
Each is a string or (ROLE STRING), ROLE being what gptel would set."
  (declare (indent 2) (debug t))
  `(let ((gptel-backend turn-tests-backend)
         (gptel-model 'm))
     (with-temp-buffer
       (funcall ,mode)
       (setq-local gptel-track-response t
                   gptel-prompt-prefix-alist '((org-mode . "*** "))
                   gptel-response-prefix-alist nil)
       (dolist (piece ,pieces)
         (pcase piece
           (`(,role ,text) (insert (propertize text 'gptel role)))
           (_ (insert piece))))
       ,@body)))

(defun compact-tests-ends ()
  "Return what stands in front of each end of a turn, some characters."
  (mapcar (lambda (end)
            (buffer-substring-no-properties (max (point-min) (- end 3)) end))
          (gptel-retention-host-turn-ends)))

(defconst compact-tests-turns
  '("hello" "\n\n" (response "one 1") "\n\nnext " (response "two 2")
    "\n\n" (tool "\n(:name \"x\" :args nil)\n\nresult") "\n\n"
    (response "two 3") "\n\nlast" "\n\n" (response "thr 4") "\n\n")
  "Three turns in text, the second one with a call.")


;;; Where turns end

(ert-deftest compact-a-turn-ends-in-front-of-a-prompt ()
  "L1: neither between a response and a call, nor behind results."
  (compact-tests-with-text #'text-mode compact-tests-turns
    (should (equal '("e 1" "o 3" "r 4") (compact-tests-ends))))
  (compact-tests-with-text #'text-mode
      '("hello\n" ((tool . "id") "(:name \"x\" :args nil)\n\nresult")
        "\nand now?\n" (response "this") ((tool . "id2") "(:name"))
    (should-not (compact-tests-ends))))

(ert-deftest compact-lines-of-blocks-are-no-prompts ()
  "L1: what Org shows around calls and reasoning has no role, either."
  (compact-tests-with-text #'org-mode
      '("hello\n\n" "#+begin_reasoning\n" (ignore "hm") "\n#+end_reasoning\n\n"
        (response "one 1") "\n\n#+begin_tool (x)"
        ((tool . "id") "\n(:name \"x\" :args nil)\n\nresult")
        "\n#+end_tool\n" (response "one 2") "\n\n*** "
        "\n" (response "one 3") "\n\n*** next")
    (should (equal '("e 3") (compact-tests-ends)))))

(ert-deftest compact-ignored-text-belongs-to-the-turn-before ()
  "L1: so that a summary does not take over its role."
  (compact-tests-with-text #'text-mode
      '("hello " (response "one 1") (ignore " [note]") "\n\nnext "
        (response "two 2") "\n" (ignore "[other]") "\nlast")
    (should (equal '("te]" "o 2") (compact-tests-ends)))))


;;; The history

(defun compact-tests-history (limit &optional start)
  "Return (TEXT . MESSAGES) of the history up to LIMIT, from START on."
  (let ((history (gptel-retention-compact--history limit start)))
    (cons (gptel-retention-compact--history-text history)
          (mapcar (lambda (message) (plist-get message :content))
                  (gptel-retention-host-decode
                   (gptel-retention-compact--history-messages history))))))

(defun compact-tests-at (text)
  "Return the position behind TEXT."
  (save-excursion
    (goto-char (point-min))
    (search-forward text)))

(ert-deftest compact-history-ends-before-point ()
  "L1: with the last whole turn; without one there is nothing to compact."
  (compact-tests-with-text #'text-mode compact-tests-turns
    (should (equal '("hello\n\none 1" "hello" "one 1")
                   (compact-tests-history (compact-tests-at "result"))))
    (should (equal "hello\n\none 1"
                   (car (compact-tests-history (compact-tests-at "one 1")))))
    (should-error (compact-tests-history (1- (compact-tests-at "one 1")))
                  :type 'user-error)))

(ert-deftest compact-history-may-begin-later ()
  "L1: a region has the turns that are whole in it."
  (compact-tests-with-text #'text-mode compact-tests-turns
    (let ((two "\n\nlast\n\nthr 4"))
      (dolist (start (list (compact-tests-at "hel")
                           (compact-tests-at "one 1")
                           (compact-tests-at "one 1\n\n")))
        (should (string-prefix-p
                 "\n\nnext "
                 (car (compact-tests-history (point-max) start)))))
      (dolist (start (list (compact-tests-at "result")
                           (compact-tests-at "two 3\n")))
        (should (equal (list two "last" "thr 4")
                       (compact-tests-history (point-max) start))))
      (should-error (compact-tests-history (compact-tests-at "two 3")
                                           (compact-tests-at "next"))
                    :type 'user-error))))

(ert-deftest compact-what-is-no-text-stays-in-front ()
  "L1: the drawer, keywords, the line of variables; they are sent as before."
  (compact-tests-with-text #'org-mode
      '(":PROPERTIES:\n:X: y\n:END:\n#+title: A\n# note\n\n*** hello\n"
        (response "one 1") "\n\n*** next")
    (should (equal '("*** hello\none 1"
                     "#+title: A\n# note\n\n*** hello" "one 1")
                   (compact-tests-history (point-max)))))
  (compact-tests-with-text #'text-mode
      '("-*- x: y -*-\nhello\n" (response "one 1"))
    (should (equal "hello\none 1"
                   (car (compact-tests-history (point-max)))))))

(ert-deftest compact-a-topic-begins-with-its-heading ()
  "L1: what stands before it is not sent, and not compacted."
  (compact-tests-with-text #'org-mode
      '("* A\nbefore\n" (response "zero")
        "\n* B\n:PROPERTIES:\n:GPTEL_TOPIC: b\n:END:\nhello\n"
        (response "one 1"))
    (goto-char (point-max))
    (should (equal '("hello\none 1" "* B\n\nhello" "one 1")
                   (compact-tests-history (point-max))))))


;;; Asking

(defmacro compact-tests-with (answers retire &rest body)
  "Run BODY in a chat of a turn with a provider that gives ANSWERS.
RETIRE are the steps of the backend for `conversation/retire'."
  (declare (indent 2) (debug t))
  `(turn-tests-with-provider ,answers
     (test-helper-with-backend
         '(("initialize"
            . [(:result (:capabilities ["conversation/retire"]))])
           ("conversation/retire" . ,retire))
       (let ((gptel-use-context nil)
             (gptel-use-curl t)
             (gptel-backend turn-tests-backend)
             (gptel-model 'm)
             (gptel-retention-sections nil)
             (gptel-retention-reminders nil))
         (with-temp-buffer
           (text-mode)
           (buffer-enable-undo)
           (setq-local gptel-track-response t
                       gptel-retention-id "abc")
           (unwind-protect
               (save-window-excursion
                 (gptel-retention-mode)
                 (dolist (piece compact-tests-turns)
                   (pcase piece
                     (`(tool ,_))
                     (`(,role ,text) (insert (propertize text 'gptel role)))
                     (_ (insert piece))))
                 (goto-char (compact-tests-at "two 3"))
                 ,@body)
             (when (buffer-live-p gptel-retention-compact--pending)
               (kill-buffer gptel-retention-compact--pending))
             (gptel-retention-mode -1)))))))

(defun compact-tests-edit ()
  "Have a summary made, and return the buffer where it is edited."
  (gptel-retention-compact)
  (let ((chat (current-buffer)))
    (test-helper-wait
     5 "the summary"
     (lambda ()
       (let ((pending (buffer-local-value 'gptel-retention-compact--pending
                                          chat)))
         (and (buffer-live-p pending)
              (with-current-buffer pending
                (derived-mode-p 'gptel-retention-compact-mode)))))))
  gptel-retention-compact--pending)

(defun compact-tests-accept ()
  "Accept the summary of this chat, and let what is on its way arrive."
  (with-current-buffer gptel-retention-compact--pending
    (call-interactively (key-binding (kbd "C-c C-c"))))
  (compact-tests-idle))

(defun compact-tests-idle ()
  "Let what is on its way arrive."
  (let ((end (+ (float-time) 0.3)))
    (while (< (float-time) end)
      (accept-process-output nil 0.02))))

(ert-deftest compact-retires-once-and-then-replaces ()
  "L1: the same messages are offered and retired; then the text is replaced."
  (compact-tests-with [(:text "All is well.")]
      [(:result (:text "The evidence" :rows 2)) (:result (:retired t))]
    (let ((text (buffer-string)))
      (compact-tests-edit)
      (should (equal text (buffer-string)))
      (with-current-buffer gptel-retention-compact--pending
        (should (equal "All is well." (buffer-string)))
        (should (string-search "about 3 tokens"
                               (gptel-retention-compact--header))))
      (compact-tests-accept)
      (pcase-let ((`(,offered ,retired)
                   (turn-tests-params "conversation/retire")))
        (should (eq :json-false (plist-get offered :confirm)))
        (should (eq t (plist-get retired :confirm)))
        (should (equal '("abc" "messages")
                       (list (plist-get offered :id)
                             (plist-get offered :array))))
        (should (equal (plist-get offered :before)
                       (plist-get retired :before)))
        (should (equal '("hello" "one 1" "next" "two 2" "two 3")
                       (mapcar (lambda (message) (gethash "content" message))
                               (json-parse-string
                                (plist-get offered :before))))))
      ;; What a model is asked has no part in the conversation.
      (should (equal '("The evidence")
                     (mapcar (lambda (messages)
                               (plist-get (cadr messages) :content))
                             (turn-tests-bodies))))
      (should-not (test-helper-log "request/prepare"))
      (should (string-match-p
               "\\`\\(### \\)?Summarize.*\n\nAll is well.\n\nlast\n\nthr 4"
               (buffer-string)))
      (should-not (gptel-retention-compact--pending-p))
      (setq last-command nil)
      (undo)
      (should (equal-including-properties text (buffer-string))))))

(ert-deftest compact-what-is-not-retired-stays ()
  "L1, Z1: if the backend refuses, the text and the summary stay."
  (compact-tests-with [(:text "All is well.")]
      [(:result (:text "The evidence" :rows 2))
       (:error (:code -32000 :message "no" :data (:code "store")))]
    (let ((text (buffer-string)))
      (compact-tests-edit)
      (should (string-search "stays"
                             (string-join (test-helper-messages
                                            (compact-tests-accept)))))
      (should (equal text (buffer-string)))
      (should (gptel-retention-compact--pending-p)))))

(ert-deftest compact-what-the-backend-does-not-know-is-replaced ()
  "F10: history from before the mode was on has nothing to retire."
  (compact-tests-with [(:text "All is well.")]
      [(:result (:text "The evidence"))]
    (compact-tests-edit)
    (compact-tests-accept)
    (should (equal 1 (length (test-helper-log "conversation/retire"))))
    (should (string-search "All is well." (buffer-string)))
    (should-not (string-search "one 1" (buffer-string)))))

(ert-deftest compact-without-a-summary-nothing-happens ()
  "Z1: the provider fails, or says nothing; it can be tried again."
  (compact-tests-with [(:status 400) (:text " ") (:text "Well.")]
      [(:result (:text "The evidence"))]
    (let ((text (buffer-string)))
      (dolist (problem '("400" "empty"))
        (let (said)
          (setq said (test-helper-messages
                       (gptel-retention-compact)
                       (compact-tests-idle)))
          (should (string-search problem (string-join said "\n")))
          (should (equal text (buffer-string)))
          (should-not (gptel-retention-compact--pending-p))))
      (compact-tests-edit))))

(ert-deftest compact-a-large-history-is-handed-over ()
  "P2: quotes in the messages take more room inside a frame."
  (compact-tests-with [(:text "All is well.")]
      [(:result (:text "The evidence" :rows 2)) (:result (:retired t))]
    (goto-char (point-min))
    (insert (make-string 5000 ?\"))
    (goto-char (compact-tests-at "two 3"))
    (compact-tests-edit)
    (compact-tests-accept)
    (should (equal (make-list 5000 ?\")
                   (append
                    (string-remove-suffix
                     "hello"
                     (gethash "content"
                              (aref (json-parse-string
                                     (plist-get
                                      (cadr (turn-tests-params
                                             "conversation/retire"))
                                      :before))
                                    0)))
                    nil)))))

(ert-deftest compact-another-model-may-summarize ()
  "A prefix argument asks which; the conversation keeps its own."
  (compact-tests-with [(:text "All is well.")]
      [(:result (:text "The evidence"))]
    (let ((other (gptel-make-openai "O" :key "k" :models '(small)
                   :protocol "http"
                   :host (gptel-backend-host turn-tests-backend))))
      (setq-local gptel-max-tokens 77)
      (cl-letf (((symbol-function 'completing-read)
                 (lambda (_prompt models &rest _)
                   (car (assoc "O:small" models)))))
        (gptel-retention-compact t))
      (should-not (eq other gptel-backend))
      (test-helper-wait 5 "the request"
                        (lambda () (turn-tests-bodies)))
      (with-temp-buffer
        (insert-file-contents turn-tests-bodies)
        (should (search-forward "\"small\"" nil t))
        (goto-char (point-min))
        (should (search-forward "\"max_tokens\":77" nil t))))))

(ert-deftest compact-the-backend-knows-the-last-turn-by-then ()
  "Q5: what it was not told yet comes before what it is asked."
  (compact-tests-with [(:text "All is well.")]
      [(:result (:text "The evidence"))]
    (let ((conversation (gptel-retention-turn--find (current-buffer))))
      (push (lambda () (gptel-retention-rpc-send "turn/complete"
                                                 (list :request "r")))
            (gptel-retention-turn--conversation-pending conversation))
      (compact-tests-edit)
      (should (equal '("turn/complete" "conversation/open"
                       "conversation/retire")
                     (cdr (test-helper-methods)))))))

(ert-deftest compact-undo-has-room-for-the-history ()
  "L1: what was replaced is not forgotten for being large."
  (compact-tests-with [(:text "All is well.")]
      [(:result (:text "The evidence"))]
    (goto-char (point-min))
    (insert (make-string 400000 ?x) " ")
    (setq buffer-undo-list nil)
    (goto-char (compact-tests-at "two 3"))
    (dolist (text '("." "!"))
      (insert (propertize text 'gptel 'response))
      (undo-boundary))
    (let ((text (buffer-string)))
      (compact-tests-edit)
      (compact-tests-accept)
      (should-not (equal text (buffer-string)))
      (dotimes (_ 3)
        (goto-char (point-max))
        (insert "more")
        (undo-boundary)
        (garbage-collect))
      (setq last-command nil)
      (dotimes (_ 4)
        (undo)
        (setq last-command 'undo))
      (should (equal text (buffer-string))))))

(ert-deftest compact-not-where-the-conversation-is-not-kept ()
  "The mode is off, or branches share the text."
  (with-temp-buffer
    (should-error (gptel-retention-compact) :type 'user-error))
  (compact-tests-with [] [(:result (:text "The evidence"))]
    (setq-local gptel-org-branching-context t)
    (delay-mode-hooks (setq major-mode 'org-mode))
    (should-error (gptel-retention-compact) :type 'user-error)
    (should-not (test-helper-log "conversation/retire"))))

(provide 'compact-tests)
;;; compact-tests.el ends here
