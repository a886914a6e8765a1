;;; driver.el --- Real gptel chats, driven from a test  -*- lexical-binding: t; -*-

;; SPDX-License-Identifier: GPL-3.0-or-later

;;; Commentary:

;; A batch Emacs that loads this reads one form a line from its input, evaluates it and prints one
;; line of JSON: {"value": ...} or {"error": ...}.  The functions below are what a user does: open
;; a chat, type a prompt, send it, edit, save, reopen.  Everything is real gptel and real curl.

;;; Code:

(require 'cl-lib)
(require 'json)
(require 'gptel)
(require 'gptel-anthropic)
(require 'gptel-gemini)
(require 'gptel-ollama)
(require 'gptel-bedrock)
(require 'gptel-gh)
(require 'gptel-openai)
(require 'gptel-openai-responses nil t)
(require 'gptel-openai-extras)
(require 'gptel-org)
(require 'gptel-context)
(require 'markdown-mode)
(require 'gptel-retention)

(defvar driver-port nil "Port of the loopback provider.")
(defvar driver-wait 20 "Seconds to wait for a request before giving up.")

(defun driver-backend (api &optional whole)
  "Return a fresh gptel backend that speaks API with the loopback provider.
WHOLE tells that it does not stream: Bedrock's has to know."
  (let ((host (format "127.0.0.1:%d" driver-port))
        (models '((test-model :capabilities (tool-use cache))
                  other-model claude-opus-5-5)))
    (pcase api
      ("anthropic" (gptel-make-anthropic api :host host :protocol "http" :key "k"
                     :stream t :models models))
      ("openai" (gptel-make-openai api :host host :protocol "http" :key "k"
                  :stream t :models models))
      ("deepseek" (gptel-make-deepseek api :host host :protocol "http" :key "k"
                    :endpoint "/deepseek/chat/completions" :stream t :models models))
      ("mistral" (gptel-make-openai api :host (format "localhost:%d" driver-port)
                   :protocol "http" :key "k"
                   :endpoint "/mistral/v1/chat/completions" :stream t :models models))
      ("responses" (funcall (if (fboundp 'gptel-make-openai-responses)
                                #'gptel-make-openai-responses #'gptel-make-openai)
                            api :host host :protocol "http" :key "k"
                            :endpoint "/v1/responses" :stream t :models models))
      ("gemini" (gptel-make-gemini api :host host :protocol "http" :key "k"
                  :stream t :models models))
      ("ollama" (gptel-make-ollama api :host host :protocol "http"
                  :stream t :models models))
      ("bedrock" (gptel-make-bedrock api :host host :protocol "http"
                   :aws-bearer-token "k" :stream (not whole)
                   :models '(claude-opus-4-6 nova-2-lite-v1)))
      ("openrouter" (gptel-make-openai api :host host :protocol "http" :key "k"
                      :endpoint "/openrouter/api/v1/chat/completions"
                      :stream t :models models))
      ("copilot" (gptel-make-gh-copilot api :host host :protocol "http" :header nil
                   :endpoint "/copilot/chat/completions" :stream t
                   :models (cons '(new-model :capabilities (tool-use responses-api))
                                 models)))
      (_ (error "No backend for %s" api)))))

(defun driver-tool (name)
  "Return a tool called NAME whose result depends on its argument alone."
  (gptel-make-tool
   :name name :description (format "Return what %s says" name) :category "test"
   :args '((:name "path" :type string :description "Which one"))
   :include t
   :function (lambda (path) (format "%s says: contents of %s\nsecond line\n" name path))))

(defvar driver-sections nil "Alist of section name to body, the observations of the test.")

(defun driver-define-section (name kind live)
  "Define section NAME of KIND whose body is looked up in `driver-sections'."
  (gptel-retention-define-section
   (intern name) :title (capitalize name) :kind (intern kind) :live live
   :body (lambda () (let ((body (alist-get name driver-sections nil nil #'equal)))
                      (if (functionp body) (funcall body) body)))))

(defun driver-setup (port store command)
  "Talk to the provider on PORT, keep the store in STORE, start the backend with COMMAND."
  (setq driver-port port
        gptel-retention-store-directory store
        gptel-retention-command command
        gptel-retention-sections nil
        gptel-retention-api-alist '(("\\`localhost:" . "mistral"))
        gptel-retention-slow-section 5.0 ;a loaded machine must not decide what is read
        gptel-use-curl t
        gptel-api-key "k"
        gptel-confirm-tool-calls nil
        gptel-expert-commands t
        gptel-default-mode 'text-mode
        gptel-log-level nil
        org-inhibit-startup t
        make-backup-files nil
        auto-save-default nil
        create-lockfiles nil
        enable-local-variables :all
        gptel--system-message "You are a test."
        inhibit-message t)
  (when (boundp 'gptel-system-prompt) (setq gptel-system-prompt "You are a test."))
  t)

(cl-defun driver-configure (api &key (stream t) sections plain (tools '("read" "look")))
  "Set up the current buffer as a chat with API.
STREAM, SECTIONS (names), TOOLS (names) are buffer-local; PLAIN leaves the mode off."
  (setq-local gptel-backend (driver-backend api (not stream))
              gptel-model 'test-model
              gptel-stream stream
              gptel-use-tools (and tools t)
              gptel-tools (mapcar #'driver-tool tools)
              gptel-retention-sections (mapcar #'intern sections)
              gptel-track-media nil)
  (unless gptel-mode (gptel-mode 1))
  (unless plain (gptel-retention-mode 1)))

(cl-defun driver-open (name mode api &rest options &key file &allow-other-keys)
  "Make the chat buffer NAME in MODE with API; FILE visits a file.  See `driver-configure'."
  (let ((buffer (if file (find-file-noselect file) (get-buffer-create name))))
    (with-current-buffer buffer
      (rename-buffer name)
      (funcall mode)
      (cl-remf options :file)
      (apply #'driver-configure api options))
    t))

;; Some of gptel's stream parsers signal when a chunk ends at an unlucky place (Gemini: "No match
;; data"; Bedrock: a filter that gets nil).  That is a message in a session, and the end of a batch
;; Emacs.
(define-advice gptel-curl--stream-filter (:around (filter &rest arguments) demote)
  "Call FILTER with ARGUMENTS; an error in it is a message, as in a session."
  (with-demoted-errors "In a session too: %S" (apply filter arguments)))

(defun driver-idle-p (buffer)
  "Whether no request of BUFFER is under way."
  (let ((fsm (buffer-local-value 'gptel--fsm-last buffer)))
    (and (or (null fsm) (memq (gptel-fsm-state fsm) '(DONE ERRS ABRT)))
         (not (cl-find buffer gptel--request-alist
                       :key (lambda (entry)
                              (plist-get (gptel-fsm-info (cadr entry)) :buffer)))))))

(defun driver-await (&rest names)
  "Wait until the chats NAMES are idle and what follows a turn has been done."
  (let ((deadline (+ (float-time) driver-wait))
        (buffers (mapcar #'get-buffer names)))
    (while (and (< (float-time) deadline) (not (cl-every #'driver-idle-p buffers)))
      (accept-process-output nil 0.02))
    (unless (cl-every #'driver-idle-p buffers)
      (error "Still waiting: %S"
             (mapcar (lambda (b) (let ((fsm (buffer-local-value 'gptel--fsm-last b)))
                                   (and fsm (gptel-fsm-state fsm))))
                     buffers)))
    (driver-settle)
    (mapcar (lambda (b) (let ((fsm (buffer-local-value 'gptel--fsm-last b)))
                          (format "%s %s" (gptel-fsm-state fsm)
                                  (plist-get (gptel-fsm-info fsm) :http-status))))
            buffers)))

(defun driver-settle ()
  "Let timers run and the backend answer what it was sent."
  (sit-for 0.02)
  (accept-process-output nil 0.02)
  (sit-for 0.01))

(defun driver-goto-end ()
  "Go to the end of the chat in the current buffer, before file-local variables."
  (goto-char (point-max))
  (when (re-search-backward "Local Variables[:]" nil t)
    (forward-line 0)
    (skip-chars-backward "\n")))

(defun driver-type (name prompt)
  "Append PROMPT to the chat NAME and leave point behind it."
  (with-current-buffer name
    (driver-goto-end)
    (insert prompt))
  t)

(defun driver-start (name &optional prompt)
  "Type PROMPT into the chat NAME, and send; return without waiting."
  (when prompt (driver-type name prompt))
  (with-current-buffer name
    (driver-goto-end)
    (deactivate-mark)
    (gptel-send))
  t)

(defun driver-send (name &optional prompt)
  "Type PROMPT into the chat NAME, send, and wait; return how the request ended."
  (driver-start name prompt)
  (car (driver-await name)))

(defun driver-eval-in (name form)
  "Evaluate FORM in the chat NAME."
  (with-current-buffer name (eval form t)))

(defun driver-text (name)
  "Return the text of the chat NAME."
  (with-current-buffer name (buffer-substring-no-properties (point-min) (point-max))))

(defun driver-json (value)
  "Return VALUE as JSON text, strings, numbers and lists of these as they are."
  (json-encode (cond ((stringp value) (substring-no-properties value))
                     ((or (numberp value) (memq value '(t nil))) value)
                     ((and (listp value) (cl-every #'stringp value)) (vconcat value))
                     (t (prin1-to-string value)))))

(defun driver-loop ()
  "Evaluate forms from the input until it ends."
  (let (line)
    (while (setq line (ignore-errors (read-from-minibuffer "")))
      (let ((reply (condition-case err
                       (concat "{\"value\": " (driver-json (eval (read line) t)) "}")
                     ((error quit)
                      (format "{\"error\": %s}" (json-encode (format "%S" err)))))))
        (send-string-to-terminal
         (concat (encode-coding-string reply 'utf-8 t) "\n"))))))

(provide 'driver)
;;; driver.el ends here
