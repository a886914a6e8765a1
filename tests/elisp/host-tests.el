;;; host-tests.el --- What we know of gptel  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Against the real gptel; no backend and no network.

;;; Code:

(require 'test-helper)
(require 'gptel)
(require 'gptel-anthropic)
(require 'gptel-bedrock)
(require 'gptel-gemini)
(require 'gptel-gh)
(require 'gptel-kagi)
(require 'gptel-ollama)
(require 'gptel-openai-extras)
(require 'gptel-org)
(require 'markdown-mode)
(require 'gptel-retention-host)

(defun host-tests-backends ()
  "Return an alist of API names and new backends, without registering them."
  (let ((gptel--known-backends nil))
    (list (cons "anthropic" (gptel-make-anthropic "A" :key "secret"))
          (cons "openai" (gptel-make-openai "O" :key "secret" :host "h.test"
                                            :models '(m)))
          (cons (if (fboundp 'gptel-openai-responses-p) ; since 0.9.9.5
                    "responses"
                  "openai")
                (gptel-make-openai "R" :key "secret"))
          (cons "gemini" (gptel-make-gemini "G" :key "secret"))
          (cons "ollama" (gptel-make-ollama "L" :models '(m)))
          (cons "deepseek" (gptel-make-deepseek "D" :key "secret"))
          (cons "mistral" (gptel-make-openai "M" :key "secret" :models '(m)
                                             :host "api.mistral.ai"))
          (cons "openai" (gptel-make-xai "X" :key "secret"))
          (cons "copilot" (gptel-make-gh-copilot "C"))
          (cons "kagi" (gptel-make-kagi "K" :key "secret")))))

(defconst host-tests-tool-apis
  '("anthropic" "openai" "responses" "gemini" "ollama" "deepseek" "mistral")
  "APIs whose parsers are tried.")

(defmacro host-tests-with-buffer (mode &rest body)
  "Run BODY in a chat buffer in MODE."
  (declare (indent 1) (debug t))
  `(with-temp-buffer
     (funcall ,mode)
     (setq-local gptel-mode t
                 gptel-track-response t
                 gptel-use-context nil)
     ,@body))

(defun host-tests-insert (&rest parts)
  "Insert PARTS, each a string or (ROLE . STRING)."
  (dolist (part parts)
    (if (stringp part)
        (insert part)
      (insert (propertize (cdr part) 'gptel (car part))))))

(defun host-tests-info (backend &rest more)
  "Return the plist of a request of this buffer to BACKEND, and MORE."
  (append (list :backend backend
                :model (car (gptel-backend-models backend))
                :buffer (current-buffer))
          more))

(defun host-tests-rebuild (info)
  "Return the messages that gptel would send of this buffer up to point.
INFO says to whom."
  (let ((gptel-backend (plist-get info :backend))
        (gptel-model (plist-get info :model)))
    (with-current-buffer (gptel--create-prompt-buffer (point))
      (unwind-protect
          (progn
            (goto-char (point-max))
            (gptel--parse-buffer gptel-backend nil))
        (kill-buffer)))))

;;; JSON

(defun host-tests-random-json (depth)
  "Return a random JSON text nested up to DEPTH deep."
  (pcase (random (if (> depth 0) 9 7))
    (0 "null") (1 "true") (2 "false") (3 (number-to-string (random 1000000)))
    (4 "{}") (5 "[]") (6 (seq-random-elt ["\"\"" "\"é\\n\\\"x\"" "\"\\u0001\""
                                          "-0.5" "\"\U0001F600\""]))
    (7 (format "[%s]"
               (mapconcat (lambda (_) (host-tests-random-json (1- depth)))
                          (number-sequence 1 (random 4)) ",")))
    (_ (format "{%s}"
               (mapconcat (lambda (n)
                            (format "\"k%d\":%s" n
                                    (host-tests-random-json (1- depth))))
                          (number-sequence 1 (random 4)) ",")))))

(ert-deftest host-tests-json-survives-both-ways ()
  "S9: {}, null, false, [] and key order survive reading and writing."
  (let ((seed (format "%s" (current-time))))
    (random seed)
    (ert-info (seed :prefix "seed: ")
      (dotimes (_ 300)
        (let ((text (format "[%s]" (host-tests-random-json 4))))
          (should (equal text
                         (decode-coding-string
                          (gptel-retention-host-encode
                           (gptel-retention-host-decode text))
                          'utf-8))))))))

(ert-deftest host-tests-decode-refuses-what-is-no-array ()
  (dolist (text '("{}" "" "[1" "nonsense" "null"))
    (should-error (gptel-retention-host-decode text)
                  :type 'gptel-retention-protocol-error)))

(ert-deftest host-tests-include-adds-and-takes-back ()
  "The payload asks for what is missing, and is the same object after."
  (pcase-dolist (`(,before ,names ,during)
                 '((nil ("a" "b") (:include ["a" "b"]))
                   ((:include ["a" "z"]) ("a" "b") (:include ["a" "z" "b"]))
                   ((:include []) ("a") (:include ["a"]))
                   ((:include ["a"]) ("a") nil)
                   (nil nil nil)))
    (let* ((data (append (list :model "m" :input [1]) before nil))
           (info (list :data data))
           (plain (copy-tree data t))
           (undo (gptel-retention-host-include info names)))
      (should (eq (and during t) (and undo t)))
      (when undo
        (should (equal (append '(:model "m" :input [1]) during) data))
        (funcall undo))
      (should (eq data (plist-get info :data)))
      (should (equal plain data)))))

(ert-deftest host-tests-encode-gives-bytes ()
  "P3: the bytes of gptel's JSON, undecoded."
  (let ((bytes (gptel-retention-host-encode ["é"])))
    (should-not (multibyte-string-p bytes))
    (should (equal bytes (encode-coding-string "[\"é\"]" 'utf-8)))))

;;; The payload

(ert-deftest host-tests-array-is-found-by-key ()
  "The array is known by its key, never by the backend's class."
  (dolist (key '(:messages :input :contents))
    (let* ((info (list :data (list :model "m" key [1 2] :stream t))))
      (should (eq key (gptel-retention-host-array-key info)))
      (should (equal (substring (symbol-name key) 1)
                     (gptel-retention-host-array-name info)))
      (should (equal [1 2] (gptel-retention-host-array info)))
      (should (equal "{\"model\":\"m\",\"stream\":true}"
                     (gptel-retention-host-head info)))
      (gptel-retention-host-set-array info [3])
      (should (equal [3] (plist-get (plist-get info :data) key)))))
  (should-not (gptel-retention-host-array (list :data '(:query "q"))))
  (should-not (gptel-retention-host-array (list :data (current-buffer)))))

(ert-deftest host-tests-loop-is-known-from-history ()
  "Q2: a request that went through a tool call is in the loop."
  (should-not (gptel-retention-host-loop-p '(:history (INIT))))
  (should-not (gptel-retention-host-loop-p '(:uuid "x" :history (INIT))))
  (should (gptel-retention-host-loop-p '(:history (TRET TOOL TYPE WAIT INIT))))
  (should (gptel-retention-host-loop-p '(:history (TOOL TYPE WAIT INIT)))))

(ert-deftest host-tests-identity-names-the-api ()
  "I5: each backend's API by name, and nothing of its key."
  (pcase-dolist (`(,api . ,backend) (host-tests-backends))
    (with-temp-buffer
      (let ((identity (gptel-retention-host-identity
                       (host-tests-info backend))))
        (should (equal api (plist-get identity :api)))
        (should (cl-every #'stringp (cl-loop for (_ v) on identity by #'cddr
                                             collect v)))
        (should-not (string-match-p "secret" (format "%S" identity)))))))

(ert-deftest host-tests-identity-cuts-off-credentials ()
  "I5: what a host or an endpoint carries of a credential does not travel."
  (let* ((gptel--known-backends nil)
         (backend (gptel-make-openai "O" :host "me:pw@h.test" :models '(m)
                                     :endpoint "/v1/chat?key=secret"))
         (identity (with-temp-buffer
                     (setq-local gptel-cache '(tool message))
                     (gptel-retention-host-identity
                      (host-tests-info backend)))))
    (should (equal '( :api "openai" :backend "O" :protocol "https"
                      :host "h.test" :endpoint "/v1/chat" :model "m"
                      :cache "message,tool")
                   identity))))

(ert-deftest host-tests-status-and-error-are-read ()
  "The HTTP status and the provider's words, as gptel keeps them."
  (should (equal 400 (gptel-retention-host-status '(:http-status "400"))))
  (should (equal 429 (gptel-retention-host-status '(:http-status 429))))
  (should-not (gptel-retention-host-status '(:http-status nil)))
  (should (equal "no" (gptel-retention-host-error '(:error "no"))))
  (should (equal "{\"message\":\"é\"}"
                 (gptel-retention-host-error '(:error (:message "é")))))
  (should (equal "" (gptel-retention-host-error nil))))

;;; The transcript

(defun host-tests-call (mode id name result)
  "Return the parts of a tool region in MODE with ID, NAME and RESULT."
  (let* ((call (prin1-to-string (list :name name :args '(:p "a"))))
         (text (concat "\n" call "\n\n" result)))
    (if (eq mode 'org-mode)
        (list (format "\n#+begin_tool (%s :p \"a\")" name)
              (cons `(tool . ,id) (org-escape-code-in-string text))
              "\n#+end_tool\n")
      (list "\n"
            (cons 'ignore (format "``` tool (%s :p \"a\")" name))
            (cons `(tool . ,id) text)
            (cons 'ignore "\n```\n")))))

(defun host-tests-chat (mode)
  "Insert a turn with two calls in MODE; return its bounds and boundary.
They are (BEG BOUNDARY END)."
  (insert "Hello there\n\n")
  (let ((beg (point)) boundary)
    (host-tests-insert '(response . "Let me look."))
    (apply #'host-tests-insert
           (append (host-tests-call mode "call_a" "read" "* one\n#+x: é")
                   (host-tests-call mode "call_b" "read" "two")))
    (setq boundary (point))
    (host-tests-insert '(response . "\n\nThat is *it*."))
    (prog1 (list beg boundary (point))
      (insert "\n\nNext prompt"))))

(ert-deftest host-tests-region-parses-as-the-next-rebuild ()
  "Q3: the pieces of a turn, and the whole of it, are what gptel rebuilds."
  (dolist (mode '(text-mode markdown-mode org-mode))
    (pcase-dolist (`(,api . ,backend) (host-tests-backends))
      (when (member api host-tests-tool-apis)
        (ert-info ((format "%s in %s" api mode))
          (host-tests-with-buffer mode
            (pcase-let* ((`(,beg ,boundary ,end) (host-tests-chat mode))
                         (info (host-tests-info backend))
                         (whole (gptel-retention-host-parse info beg end))
                         (pieces
                          (append
                           (gptel-retention-host-parse info beg boundary t)
                           (gptel-retention-host-parse info boundary end))))
              (should (equal whole pieces))
              (should (equal whole
                             (butlast (cdr (host-tests-rebuild info))))))))))))

(ert-deftest host-tests-user-text-at-the-end ()
  "Q4: user text at the end of a turn is left out, inside the loop it is not."
  (dolist (mode '(text-mode org-mode))
    (pcase-dolist (`(,api . ,backend) (host-tests-backends))
      (when (member api host-tests-tool-apis)
        (ert-info ((format "%s in %s" api mode))
          (host-tests-with-buffer mode
            (let ((info (host-tests-info backend)))
              (host-tests-insert '(response . "Answer.") "\n\nsteer left\n")
              (let ((without (gptel-retention-host-parse
                              info (point-min) (point-max)))
                    (with (gptel-retention-host-parse
                           info (point-min) (point-max) t)))
                (should (equal 1 (length without)))
                (should (equal 2 (length with)))
                (should (equal without (butlast with)))))))))))

(ert-deftest host-tests-empty-region-has-no-messages ()
  "Q4: an empty region is not handed to gptel's parsers."
  (pcase-dolist (`(,api . ,backend) (host-tests-backends))
    (when (member api host-tests-tool-apis)
      (ert-info (api)
        (host-tests-with-buffer 'text-mode
          (setq-local gptel-cache t)
          (insert "  \n\n  ")
          (let ((info (host-tests-info backend)))
            (should-not (gptel-retention-host-parse info 1 1 t))
            (should-not (gptel-retention-host-parse info 1 4 t))))))))

(ert-deftest host-tests-cache-mark-is-not-in-a-span ()
  "Q4: `gptel-cache' does not mark what is parsed for us."
  (let ((backend (cdr (assoc "anthropic" (host-tests-backends)))))
    (host-tests-with-buffer 'text-mode
      (setq-local gptel-cache t)
      (host-tests-insert '(response . "Answer."))
      (should (equal '((:role "assistant" :content "Answer."))
                     (gptel-retention-host-parse
                      (host-tests-info backend) 1 (point-max)))))))

(defun host-tests-split-call (mode &rest between)
  "Insert in MODE a call whose result BETWEEN splits, and another call.
BETWEEN are parts as of `host-tests-insert'."
  (let ((id (list 'tool)))
    (apply #'host-tests-insert
           `("Hello\n\n" (response . "Look.")
             ,@(mapcan (lambda (part)
                         (if (and (consp part) (listp (car part)))
                             (let* ((cut (- (length (cdr part)) 3)))
                               ;; Equal, but not the same object.
                               `((,id . ,(substring (cdr part) 0 cut))
                                 ,@between
                                 (,(copy-sequence id)
                                  . ,(substring (cdr part) cut))))
                           (list part)))
                       (host-tests-call mode nil "read" "one and )ll"))
             ;; Between two calls gptel leaves nothing but ignored text.
             ,@(let ((call (host-tests-call mode nil "read" "two")))
                 (if (eq mode 'org-mode) call (cdr call)))
             (response . "Done.") "\n\nNext")))
  (goto-char (point-max)))

(ert-deftest host-tests-split-result-is-one ()
  "F9: hidden or ignored text does not split a result; calls stay apart."
  (let ((hidden (propertize "[note]" 'invisible t)))
    (dolist (mode '(text-mode markdown-mode org-mode))
      (pcase-dolist (`(,api . ,backend) (host-tests-backends))
        (when (member api host-tests-tool-apis)
          (ert-info ((format "%s in %s" api mode))
            (let (plain)
              (pcase-dolist (`(,one . ,between)
                             `((t)
                               (t (ignore . "[note]"))
                               (t ,hidden)
                               (t (ignore . "\n(:name no call") ,hidden)
                               (nil "[note]")
                               (nil ,hidden "[note]")
                               (nil (response . "[note]"))))
                (host-tests-with-buffer mode
                  (apply #'host-tests-split-call mode between)
                  (let* ((before (buffer-string))
                         (info (host-tests-info backend))
                         (id (lambda (messages)
                               ;; Some are made up anew each time.
                               (replace-regexp-in-string
                                "\\(call\\|toolu\\)_[[:xdigit:]]+" ""
                                (format "%S" messages))))
                         (span (funcall id (gptel-retention-host-parse
                                            info 8 (point-max) t)))
                         (rebuilt
                          (let ((gptel-backend backend)
                                (gptel-model (plist-get info :model))
                                (buffer (current-buffer)))
                            (with-current-buffer
                                (gptel--create-prompt-buffer (point))
                              (unwind-protect
                                  (progn
                                    (gptel-retention-host-join-results buffer)
                                    (goto-char (point-max))
                                    (funcall id (cdr (gptel--parse-buffer
                                                      backend nil))))
                                (kill-buffer))))))
                    (should (equal-including-properties
                             before (buffer-string)))
                    (should (equal span rebuilt))
                    (setq plain (or plain span))
                    (should (eq one (equal plain span)))
                    (should (eq one (and (string-search "one and )ll" span)
                                         t)))
                    (should (string-search "two" span))
                    ;; The text of a call would be in the result before it.
                    (should-not (string-search "(:name \\\"" span))))))))))))

(ert-deftest host-tests-hidden-is-what-the-chat-hides ()
  "F9: text is hidden only if the buffer's invisibility says so."
  (let ((backend (cdr (assoc "openai" (host-tests-backends)))))
    (dolist (spec '((markup) (other)))
      (host-tests-with-buffer 'text-mode
        (setq buffer-invisibility-spec spec)
        (host-tests-split-call 'text-mode
                               (propertize "note" 'invisible 'markup))
        (should (eq (equal spec '(markup))
                    (null (string-search
                           "note" (format "%S" (gptel-retention-host-parse
                                                (host-tests-info backend)
                                                8 (point-max) t))))))))))

(ert-deftest host-tests-narrowing-and-region-do-not-matter ()
  "A narrowed buffer or an active region does not change what is parsed."
  (let ((backend (cdr (assoc "openai" (host-tests-backends)))))
    (host-tests-with-buffer 'org-mode
      (host-tests-insert '(response . "Answer.") "\n\nmore")
      (narrow-to-region 3 5)
      (set-mark 3)
      (goto-char 4)
      (activate-mark)
      (should (equal '((:role "assistant" :content "Answer."))
                     (gptel-retention-host-parse
                      (host-tests-info backend) 1 8)))
      (should (buffer-narrowed-p)))))

(ert-deftest host-tests-no-buffer-is-left ()
  "Parsing leaves no buffer behind, not even when gptel's parser fails."
  (let ((backend (cdr (assoc "openai" (host-tests-backends))))
        (before (length (buffer-list))))
    (host-tests-with-buffer 'text-mode
      (host-tests-insert '(response . "Answer."))
      (gptel-retention-host-parse (host-tests-info backend) 1 8)
      (cl-letf (((symbol-function 'gptel--parse-buffer)
                 (lambda (&rest _) (error "Broken"))))
        (should-error
         (gptel-retention-host-parse (host-tests-info backend) 1 8))))
    (should (equal before (length (buffer-list))))))

(ert-deftest host-tests-prompt-is-the-newest-one ()
  "Q6: the newest prompt is what follows the last response, as it stands."
  (let ((backend (cdr (assoc "openai" (host-tests-backends)))))
    (host-tests-with-buffer 'text-mode
      (host-tests-insert "one\n\n" '(response . "Answer.")
                         '(ignore . "\nhidden\n") "\n\n@preset two ")
      (let ((bounds (gptel-retention-host-prompt-bounds (current-buffer))))
        (should (equal (cons 1 (point-max)) bounds))
        (should (equal '((:role "user" :content "@preset two"))
                       (gptel-retention-host-parse-prompt
                        (host-tests-info backend)
                        (car bounds) (cdr bounds))))
        (should (equal '((:role "user" :content "one"))
                       (gptel-retention-host-parse-prompt
                        (host-tests-info backend) 1 5)))))))

(ert-deftest host-tests-prompt-bounds-follow-the-region ()
  "With an active region gptel sends that, else up to the end of the word."
  (with-temp-buffer
    (insert "one two three")
    (goto-char 6)
    (should (equal '(1 . 8) (gptel-retention-host-prompt-bounds
                             (current-buffer))))
    (let ((transient-mark-mode t))
      (set-mark 2)
      (activate-mark)
      (should (equal '(2 . 6) (gptel-retention-host-prompt-bounds
                               (current-buffer)))))))

(ert-deftest host-tests-span-needs-gptel-to-insert ()
  "H3: no span for another callback, in place, or in another buffer."
  (let ((other (generate-new-buffer "other")))
    (unwind-protect
        (host-tests-with-buffer 'text-mode
          (insert "prompt answer")
          (let* ((position (copy-marker 8))
                 (end (copy-marker 14))
                 (span (lambda (&rest changes)
                         (gptel-retention-host-span
                          (append changes
                                  (list :callback #'gptel--insert-response
                                        :position position
                                        :tracking-marker end
                                        :buffer (current-buffer)))))))
            (should (equal (list (current-buffer) 8 14) (funcall span)))
            (should (funcall span :callback
                             'gptel-curl--stream-insert-response))
            (should-not (funcall span :callback #'ignore))
            (should-not (funcall span :in-place t))
            (should-not (funcall span :position
                                 (set-marker (make-marker) 1 other)))
            (should (equal (list (current-buffer) 8 nil)
                           (funcall span :tracking-marker nil)))
            (setq-local gptel-mode nil
                        gptel-track-response nil)
            (should-not (funcall span))))
      (kill-buffer other))))

;;; Restored files

(ert-deftest host-tests-bare-tool-regions-are-mended ()
  "H5, case S5: a restored call without an id is read again as a call."
  (dolist (mode '(org-mode text-mode))
    (let ((backend (cdr (assoc "gemini" (host-tests-backends))))
          before)
      (ert-info ((symbol-name mode))
        (host-tests-with-buffer mode
          (insert "prompt\n")
          (apply #'host-tests-insert (host-tests-call mode nil "read" "one"))
          (let ((info (host-tests-info backend))
                (bounds (gptel--get-buffer-bounds)))
            (setq before (gptel-retention-host-parse info 1 (point-max)))
            (set-text-properties 1 (point-max) nil)
            (gptel--restore-props bounds)
            (set-buffer-modified-p nil)

            (gptel-retention-host-repair-restored)

            (should-not (buffer-modified-p))
            (should (equal before (gptel-retention-host-parse
                                   info 1 (point-max))))
            (should (assq 'tool bounds))))))))

(ert-deftest host-tests-tokens-are-all-input-and-output ()
  "What the context holds is every input token, cached or not, and output."
  (should (equal 111 (gptel-retention-host-tokens
                      '(:tokens (:input 1 :cached 10 :cache 1 :output 100)))))
  (should-not (gptel-retention-host-tokens '(:tokens nil))))

(ert-deftest host-tests-models-with-a-cache ()
  "C3: gptel marks messages for the models that it says have a cache."
  (let ((with (make-symbol "with")) (without (make-symbol "without")))
    (put with :capabilities '(tool-use cache))
    (put without :capabilities '(tool-use))
    (should (gptel-retention-host-caches-p (list :model with)))
    (should-not (gptel-retention-host-caches-p (list :model without)))))

(ert-deftest host-tests-schema-is-for-those-that-take-one ()
  "Of gptel's backends only some have a place for a schema."
  (let ((gptel--known-backends nil))
    (pcase-dolist (`(,backend . ,takes)
                   `((,(gptel-make-openai "O" :key "k" :models '(m)) . t)
                     (,(gptel-make-kagi "K" :key "k") . nil)))
      (let ((gptel-backend backend))
        (should (eq takes
                    (and (gptel-retention-host--schema-p) t)))))))

(provide 'host-tests)
;;; host-tests.el ends here
