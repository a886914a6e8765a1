;;; gptel-retention.el --- Keep gptel's prompt exact -*- lexical-binding: t; -*-

;; Author: The gptel-retention authors
;; Version: 0.1.0
;; URL: https://gptel-retention.example/
;; Package-Requires: ((emacs "29.1") (gptel "0.9.9.6") (jsonrpc "1.0.16") (transient "0.7.8"))
;; Keywords: convenience, tools

;; SPDX-License-Identifier: GPL-3.0-or-later

;; This program is free software: you can redistribute it and/or modify
;; it under the terms of the GNU General Public License as published by
;; the Free Software Foundation, either version 3 of the License, or
;; (at your option) any later version.
;;
;; This program is distributed in the hope that it will be useful,
;; but WITHOUT ANY WARRANTY; without even the implied warranty of
;; MERCHANTABILITY or FITNESS FOR A PARTICULAR PURPOSE.  See the
;; GNU General Public License for more details.
;;
;; You should have received a copy of the GNU General Public License
;; along with this program.  If not, see <https://www.gnu.org/licenses/>.

;;; Commentary:

;; gptel builds the prompt anew from the buffer for each request.  With
;; `gptel-retention-mode' on, the model is told once about its surroundings
;; (date, directory, the workspace's guidance and what else you select),
;; at a place that stays, and again only what changed or what the request
;; has lost.  The buffer never shows any of it.
;;
;; A backend process, written in Python, keeps the record.  If it is
;; missing, slow or broken, requests go out as gptel makes them.
;;
;;     M-x gptel-retention-install-backend
;;     (gptel-retention-global-mode)
;;
;; docs/emacs.md is the guide.

;;; Code:

(require 'seq)
(require 'subr-x)
(require 'gptel-retention-rpc)
(require 'gptel-retention-turn)
(require 'gptel-retention-sections)
(require 'gptel-retention-inspect)
(require 'gptel-retention-tools)
(require 'gptel-retention-search)
(require 'gptel-retention-compact)

(defvar gptel-mode)
(defvar gptel-prompt-transform-functions)
(defvar compilation-finish-functions)

;;; Options

(defcustom gptel-retention-environment-directory
  (locate-user-emacs-file "gptel-retention/environment/")
  "Directory of the private Python environment that holds the backend.
`gptel-retention-install-backend' makes it."
  :type 'directory
  :group 'gptel-retention)

(defcustom gptel-retention-python "python3"
  "Python program that makes the private environment, 3.11 or newer.
Change it when that name is an older version."
  :type 'string
  :group 'gptel-retention)

;;; The mode

(defconst gptel-retention--hooks
  '((gptel-post-tool-call-functions . gptel-retention-reminders-note-tool)
    (gptel-post-response-functions . gptel-retention-compact-after-turn)
    (gptel-retention-after-prepare-functions . gptel-retention--note)
    (kill-buffer-hook . gptel-retention--leave))
  "What runs in a buffer where the mode is on.")

;;;###autoload
(define-minor-mode gptel-retention-mode
  "Keep the prompt of this gptel conversation exact over time.
The model is supplied with `gptel-retention-sections' and with reminders
at places that stay.  The mode line tells how the last request went, see
`gptel-retention-inspect-indicator'; `gptel-retention-menu' does the
rest."
  :lighter (:eval (gptel-retention-inspect-indicator))
  :group 'gptel-retention
  (if gptel-retention-mode
      (gptel-retention--turn-on)
    (gptel-retention--turn-off)))

(defun gptel-retention--turn-on ()
  "Do what turning the mode on means in this buffer."
  (require 'gptel)
  (gptel-retention--choose-backend)
  (pcase-dolist (`(,hook . ,function) gptel-retention--hooks)
    (add-hook hook function nil t))
  ;; Not local: gptel would then run it before the presets are applied.
  (add-hook 'gptel-prompt-transform-functions
            #'gptel-retention-sections-note-preset 90)
  (gptel-retention-turn-enable)
  (gptel-retention-tools-enable))

(defun gptel-retention--turn-off ()
  "Do what turning the mode off means in this buffer."
  (gptel-retention-tools-disable)
  (gptel-retention-turn-disable)
  (pcase-dolist (`(,hook . ,function) gptel-retention--hooks)
    (remove-hook hook function t))
  (gptel-retention--leave)
  (gptel-retention-sections-reset)
  (gptel-retention-inspect-forget))

(defun gptel-retention--leave ()
  "Leave gptel as it was, unless the mode is on in another buffer."
  (unless (seq-some (lambda (buffer)
                      (and (not (eq buffer (current-buffer)))
                           (buffer-local-value 'gptel-retention-mode buffer)))
                    (buffer-list))
    (remove-hook 'gptel-prompt-transform-functions
                 #'gptel-retention-sections-note-preset)
    (gptel-retention-tools-leave)))

(defun gptel-retention--note (outcome)
  "Note OUTCOME of a prepare, unless it is a detached request's."
  (when (eq outcome (gptel-retention-turn-last))
    (gptel-retention-sections-note-prepared outcome)
    (gptel-retention-inspect-note outcome)))

;;;###autoload
(define-minor-mode gptel-retention-global-mode
  "Turn on `gptel-retention-mode' wherever `gptel-mode' is on."
  :global t
  :group 'gptel-retention
  (if gptel-retention-global-mode
      (add-hook 'gptel-mode-hook #'gptel-retention--follow)
    (remove-hook 'gptel-mode-hook #'gptel-retention--follow))
  (dolist (buffer (buffer-list))
    (with-current-buffer buffer
      (when (bound-and-true-p gptel-mode)
        (gptel-retention-mode (if gptel-retention-global-mode 1 -1))))))

(defun gptel-retention--follow ()
  "Turn the mode on or off with `gptel-mode'."
  (unless (eq (and gptel-retention-mode t) (and gptel-mode t))
    (gptel-retention-mode (if gptel-mode 1 -1))))

;;; Commands

;;;###autoload
(defun gptel-retention-set-goal (objective)
  "Give this conversation OBJECTIVE as its goal, or none if it is empty.
The sections `goal-policy' and `goal-facts' are selected here with it."
  (interactive (list (read-string "Objective (empty for none): "
                                  gptel-retention-goal)))
  (setq gptel-retention-goal
        (and (not (string-blank-p objective)) (string-trim objective)))
  (when gptel-retention-goal
    (dolist (name '(goal-policy goal-facts))
      (unless (memq name gptel-retention-sections)
        (setq-local gptel-retention-sections
                    (append gptel-retention-sections (list name)))))))

;;;###autoload
(defun gptel-retention-forget ()
  "Delete what is stored of this conversation, and nothing in its buffer.
The next request starts a new record."
  (interactive)
  (let ((id (gptel-retention-turn-id)))
    (unless id
      (user-error "[retention] Nothing is stored of this buffer"))
    (when (yes-or-no-p "Delete all that is stored of this conversation? ")
      (condition-case err
          (gptel-retention-rpc-call "conversation/forget" (list :id id) 30)
        (gptel-retention-error
         (user-error "[retention] %s" (error-message-string err))))
      (gptel-retention-inspect-forget)
      (message "[retention] The conversation is forgotten"))))

;;;###autoload
(defun gptel-retention-export (file)
  "Write what is stored of this conversation to FILE, which is new.
Take that and the chat's own file to another machine, and use
`gptel-retention-import' there."
  (interactive (list (read-file-name "Export to: " nil nil nil
                                     (concat (file-name-base (buffer-name))
                                             ".zip"))))
  (let ((id (gptel-retention-turn-id))
        (file (expand-file-name file)))
    (unless id
      (user-error "[retention] Nothing is stored of this buffer"))
    (when (file-remote-p file)
      (user-error "[retention] The backend writes no remote files"))
    (gptel-retention--have-done
     "conversation/export" (list :id id :file file)
     (lambda (_answer) (format "The conversation is in %s" file)))))

;;;###autoload
(defun gptel-retention-import (file &optional as-new)
  "Store the conversation in FILE, which `gptel-retention-export' wrote.
The chat file that has its id goes on with it.  If the store has another
state of it already, FILE is refused; with AS-NEW, a prefix argument, it
is stored beside that, under a new id."
  (interactive "fImport: \nP")
  (gptel-retention--have-done
   "conversation/import" (list :file (expand-file-name file)
                               :as_new (if as-new t :json-false))
   (lambda (answer)
     (format (if (eq t (plist-get answer :created))
                 "The conversation is stored, its id is %s"
               "The conversation was stored already, its id is %s")
             (plist-get answer :id)))))

(defun gptel-retention--have-done (method params say)
  "Have the backend do METHOD with PARAMS, without waiting for it.
SAY is called with the answer and returns what to tell then."
  (condition-case err
      (progn
        (gptel-retention-rpc-ensure)
        (gptel-retention-rpc-send
         method params
         (lambda (answer problem)
           (message "[retention] %s" (if problem
                                         (error-message-string problem)
                                       (funcall say answer))))))
    (gptel-retention-error
     (user-error "[retention] %s" (error-message-string err)))))

;;;###autoload
(defun gptel-retention-restart-backend ()
  "Stop the backend and start it again, also after failures."
  (interactive)
  (gptel-retention-rpc-shutdown)
  (gptel-retention-rpc-retry)
  (gptel-retention--choose-backend)
  (condition-case err
      (gptel-retention-rpc-ensure)
    (gptel-retention-error
     (user-error "[retention] %s" (error-message-string err))))
  (message "[retention] The backend is ready, version %s"
           (plist-get (gptel-retention-rpc-status) :version)))

;;; The backend's program

(defun gptel-retention--environment-program (name)
  "Return the file name of the program NAME in the private environment."
  (expand-file-name (if (eq system-type 'windows-nt)
                        (format "Scripts/%s.exe" name)
                      (concat "bin/" name))
                    gptel-retention-environment-directory))

(defun gptel-retention--choose-backend ()
  "Let `gptel-retention-command' name the private environment's backend.
That is so if there is one and you have not set the command yourself."
  (let ((program (gptel-retention--environment-program "retention")))
    (when (and (equal gptel-retention-command
                      (eval (car (get 'gptel-retention-command
                                      'standard-value))
                            t))
               (file-executable-p program))
      (setq gptel-retention-command (list program "serve")))))

(defun gptel-retention--backend-source ()
  "Return what to give pip: the checkout around this file, or a name."
  (let* ((library (locate-library "gptel-retention"))
         (root (and library
                    (file-name-directory
                     (directory-file-name
                      (file-name-directory (file-truename library)))))))
    (if (and root
             (file-exists-p (expand-file-name "pyproject.toml" root))
             (file-directory-p (expand-file-name "retention" root)))
        (directory-file-name root)
      "gptel-retention")))

(defun gptel-retention--install-command (dense)
  "Return the shell command for installing the backend.
With DENSE it brings what searching by meaning needs."
  (let ((quoted (lambda (&rest words)
                  (mapconcat #'shell-quote-argument words " "))))
    (concat
     (funcall quoted gptel-retention-python "-m" "venv"
              (directory-file-name
               (expand-file-name gptel-retention-environment-directory)))
     " && "
     (funcall quoted (gptel-retention--environment-program "python")
              "-m" "pip" "--no-color" "--disable-pip-version-check"
              "install" "--progress-bar" "off" "--upgrade"
              (concat (gptel-retention--backend-source)
                      (and dense "[dense]"))))))

;;;###autoload
(defun gptel-retention-install-backend (&optional dense)
  "Install the backend, or its newer version, for Emacs alone.
With DENSE, a prefix argument, install what searching by meaning needs
too, about 140 MB; without it only words are searched.
It goes into a private environment, `gptel-retention-environment-directory',
made with `gptel-retention-python'; the checkout that this package came
with is installed, or else the package of that name.  A buffer shows the
progress; return it.  After that the backend starts from there, unless
you have set `gptel-retention-command'."
  (interactive "P")
  (unless (executable-find gptel-retention-python)
    (user-error "[retention] There is no program %s" gptel-retention-python))
  (make-directory gptel-retention-environment-directory t)
  (let* ((default-directory (file-name-as-directory
                             (expand-file-name
                              gptel-retention-environment-directory)))
         (buffer (compilation-start
                  (gptel-retention--install-command dense) nil
                  (lambda (_mode) "*retention install*"))))
    (with-current-buffer buffer
      (add-hook 'compilation-finish-functions
                #'gptel-retention--installed nil t))
    buffer))

(defun gptel-retention--installed (_buffer outcome)
  "Tell OUTCOME of an installation and use what was installed."
  (if (not (string-prefix-p "finished" outcome))
      (message "[retention] The backend was not installed, see %s"
               (buffer-name))
    (gptel-retention-rpc-shutdown)
    (gptel-retention-rpc-retry)
    (gptel-retention--choose-backend)
    (message "[retention] The backend is installed: %s"
             (string-join gptel-retention-command " "))))

(provide 'gptel-retention)
;;; gptel-retention.el ends here
