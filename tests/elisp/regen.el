;;; regen.el --- Let the real gptel write the provider fixtures  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; Run by `python -m tests.regen providers', which serves the provider and
;; keeps the requests.  One Emacs plays one API, streamed or not:
;;
;;   emacs -Q --batch -L ... -l regen.el API STREAM PORT DIRECTORY
;;
;; It sends, in this order: a prompt, the results of two parallel calls of one
;; tool, the next prompt (so the turn is rebuilt from the buffer), a prompt
;; with a picture, a prompt that an ignored region splits, a prompt of odd
;; characters, and, where gptel marks messages, a prompt with `gptel-cache'.

;;; Code:

(require 'cl-lib)
(require 'gptel)
(require 'gptel-anthropic)
(require 'gptel-bedrock)
(require 'gptel-gemini)
(require 'gptel-gh)
(require 'gptel-ollama)
(require 'gptel-openai)
(require 'gptel-openai-extras)
(require 'gptel-openai-responses)
(require 'markdown-mode)

(defconst regen-media '(media tool-use json cache)
  "Capabilities of a model that takes pictures.")

(defun regen-models (name)
  "Return a list of models with NAME alone, which takes pictures."
  (list (list name :capabilities regen-media :mime-types '("image/png"))))

(defun regen-backend (api stream host)
  "Return the backend and the model for API at HOST, streaming if STREAM."
  (pcase api
    ("anthropic"
     (cons (gptel-make-anthropic "Fixture" :host host :protocol "http"
                                 :key "none" :stream stream
                                 :models (regen-models 'claude-sonnet-4-5))
           'claude-sonnet-4-5))
    ("openai"
     (cons (gptel-make-openai "Fixture" :host host :protocol "http"
                              :key "none" :stream stream
                              :models (regen-models 'gpt-4.1))
           'gpt-4.1))
    ("responses"
     (cons (gptel-make-openai-responses "Fixture" :host host :protocol "http"
                                        :key "none" :stream stream
                                        :models (regen-models 'gpt-5.5))
           'gpt-5.5))
    ("gemini"
     (cons (gptel-make-gemini "Fixture" :host host :protocol "http"
                              :key "none" :stream stream
                              :models (regen-models 'gemini-3.8-flash))
           'gemini-3.8-flash))
    ("ollama"
     (cons (gptel-make-ollama "Fixture" :host host :protocol "http"
                              :stream stream :models (regen-models 'qwen3))
           'qwen3))
    ("bedrock"
     (cons (gptel-make-bedrock "Fixture" :host host :protocol "http"
                               :region "us-east-1" :aws-bearer-token "none"
                               :stream stream
                               :models (regen-models 'claude-sonnet-4-5-20250929))
           'claude-sonnet-4-5-20250929))
    ("deepseek"
     (cons (gptel-make-deepseek "Fixture" :host host :protocol "http"
                                :endpoint "/deepseek/v1/chat/completions"
                                :key "none" :stream stream
                                :models (regen-models 'deepseek-v4-pro))
           'deepseek-v4-pro))
    ("mistral"
     (cons (gptel-make-openai "Fixture" :host host :protocol "http"
                              :endpoint "/mistral/v1/chat/completions"
                              :key "none" :stream stream
                              :models (regen-models 'mistral-large-latest))
           'mistral-large-latest))
    ("copilot"
     (cons (gptel-make-gh-copilot "Fixture" :host host :protocol "http"
                                  :header nil :stream stream
                                  :models (regen-models 'gpt-4.1))
           'gpt-4.1))))

(defun regen-send (text)
  "Insert TEXT at the end of this buffer, send it, and wait for the end."
  (goto-char (point-max))
  (insert text)
  (gptel-send)
  (let ((deadline (+ (float-time) 30)))
    (while (and gptel--fsm-last
                (not (memq (gptel-fsm-state gptel--fsm-last) '(DONE ERRS ABRT))))
      (when (> (float-time) deadline)
        (error "No end after 30 s: %s" (gptel-fsm-state gptel--fsm-last)))
      (accept-process-output nil 0.02))
    ;; What runs after the last state, such as the insertion, is done by timers.
    (accept-process-output nil 0.05)
    (sit-for 0)))

(defmacro regen-in-chat (directory &rest body)
  "Run BODY in a fresh chat buffer whose files are in DIRECTORY."
  (declare (indent 1))
  `(with-temp-buffer
     (setq default-directory (file-name-as-directory ,directory))
     (delay-mode-hooks (markdown-mode))
     (gptel-mode 1)
     ,@body))

(defun regen-main (api stream port directory)
  "Play API, streamed if STREAM is \"stream\", against PORT.
DIRECTORY holds the picture."
  (pcase-let ((`(,backend . ,model)
               (regen-backend api (equal stream "stream")
                              (format "127.0.0.1:%s" port))))
    (setq-default gptel-backend backend
                  gptel-model model
                  gptel-stream (equal stream "stream")
                  gptel-use-curl t
                  gptel-include-tool-results t
                  gptel-confirm-tool-calls nil
                  gptel-markdown-validate-link #'always
                  gptel-tools
                  (list (gptel-make-tool
                         :name "read" :description "Read a file."
                         :args '((:name "path" :type "string" :description "Which")
                                 (:name "limit" :type "number" :optional t
                                        :description "Lines"))
                         :function (lambda (path &optional _limit)
                                     (format "Contents of “%s”\n\n" path)))))
    (regen-in-chat directory
      (regen-send "Compare the two files, please: a.txt – b.txt\n")
      (regen-send "Thanks."))
    (let ((gptel-track-media t))
      (regen-in-chat directory
        (regen-send "See\n\n![](dot.png)\n\nWhat is it?")))
    (regen-in-chat directory
      (insert "First half.\n" (propertize "A note.\n" 'gptel 'ignore)
              "Second half.")
      (regen-send ""))
    (regen-in-chat directory
      (regen-send "Odd: \"q\" \\ / \b\f\t\u0001\u001f\u007f\u0080\u2028 é 😀\nend"))
    (when (equal api "anthropic")
      (let ((gptel-cache t))
        (regen-in-chat directory (regen-send "Keep this."))))
    (message "gptel %s, Emacs %s"
             (package-version-join
              (package-desc-version
               (package-load-descriptor
                (file-name-directory (locate-library "gptel")))))
             emacs-version)))

;; While the header is incomplete, gptel's Bedrock parser returns nil where its
;; filter expects a string.  That is a message in a session, the end in batch.
(define-advice gptel-curl--stream-filter (:around (filter &rest arguments) demote)
  "Let FILTER fail on ARGUMENTS as it does in a session."
  (with-demoted-errors "In a session too: %S" (apply filter arguments)))

(require 'package)
(apply #'regen-main command-line-args-left)
(kill-emacs 0)

;;; regen.el ends here
